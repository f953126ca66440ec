"""Data, expert, pipeline and tensor parallel at once: a mesh for the largest mixtures of experts.

::

    ranks 0 1 ─ 2 3 ─► 4 5 ─ 6 7     0 to 3 have the layers of the first stage, 4 to 7 those of the second;
                                     0 and 1 split each layer, and so do 2 and 3, for another part of the batch;
                                     0 and 2 share out the experts of their layers, and so do 1 and 3

The ranks that have different parts of the batch share out the experts: each block sends its tokens to their experts in
one all-to-all among them, and back in another, for each micro-batch. Gradients of common parameters are all-reduced
over all of them, those of an expert over the ranks that hold the same one, if --ep is less than their number.

    dptrace record --mode 4d --gpus 8 --tp 2 --pp 2
    torchrun --nproc-per-node 8 mesh_4d.py --steps 4 --tp 2 --pp 2
"""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dptrace.record import Options, World, assert_in_sync
from dptrace.trainers.parts.collectives import GradientSums, coordinates, joint_group
from dptrace.trainers.parts.experts import BALANCE, MixtureRanks, Peers, full_parameters, is_expert, use_experts
from dptrace.trainers.parts.models import stage_shapes
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.pipeline_stages import split_into_stages
from dptrace.trainers.parts.task import build_task, main
from dptrace.trainers.parts.tensor_parallel import TensorParallel


def train(options: Options, world: World) -> None:
    from dptrace.trainers.parts.pipeline_schedule import Pipeline  # a torch without it is reported here

    shards, parts = world.size // (options.pp * options.tp), options.micro_batches
    shape = (shards // options.ep, options.pp, options.ep, options.tp)
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=("dp", "pp", "ep", "tp"))
    data, experts = Peers.of(joint_group(mesh, ("dp", "ep"))), Peers.of(mesh.get_group("ep"))
    tensors = TensorParallel(mesh.get_group("tp"))
    ranks = MixtureRanks(tokens=data, experts=experts, tensor=Peers.of(tensors.group))

    task = build_task(options, world)
    mixtures = use_experts(task.model, options, ranks, world.device)
    elsewhere = (options.ep - 1) * sum(p.numel() for name, p in task.model.named_parameters() if is_expert(name))
    tensors.split(task.model)
    copies = tensors.replica_counts(task.model, shards)
    copies |= {p: copies[p] // options.ep for name, p in task.model.named_parameters() if is_expert(name)}

    pipeline_stages = split_into_stages(task.model, group=mesh.get_group("pp"))
    (stage,) = pipeline_stages.model
    del task.model  # keep only this rank's stage
    task.rank_entry |= {"coordinates": coordinates(mesh), "experts": mixtures.counters_of(stage)}
    optimizer_wrapper = OptimizerWrapper(
        stage, options, shard_group=dist.group.WORLD, replica_counts=copies, counters=mixtures.counters
    )
    shapes = stage_shapes(options.model, options.batch_size // shards // parts, options.pp, options.dtype)
    pipeline = Pipeline(task, pipeline_stages, optimizer_wrapper, shards, shapes)
    scaler = optimizer_wrapper.scaler
    mixtures.add_losses(lambda: BALANCE / len(mixtures.layers) / (parts * shards) * scaler.get_scale())

    own = {name: parameter for name, parameter in stage.named_parameters() if is_expert(name)}
    gradient_sums = GradientSums(lambda: pipeline.in_last_backward)
    gradient_sums.add(own.items(), mesh.get_group("dp"))
    gradient_sums.add(((name, p) for name, p in stage.named_parameters() if name not in own), data.group)

    with task.record(stage, tensors.parameters + elsewhere) as recording:
        for x, y in task.batches(recording.total_steps, shard=(0, 1)):
            # Each micro-batch of the batch is split over the ranks, so that its tokens are those of a single process.
            x, y = (whole.unflatten(0, (parts, shards, -1))[:, data.rank].flatten(0, 1) for whole in (x, y))
            loss = pipeline.step(x, y)
            gradient_sums.wait()
            optimizer_wrapper.step()
            recording.step(loss)

        assert_in_sync(stage, exclude=own, group=data.group)
        assert_in_sync(nn.ParameterList(own.values()), group=mesh.get_group("dp"))
        gathered = tensors.full_parameters(pipeline_stages.full_parameters().items())
        task.full_parameters = full_parameters(gathered, experts, options.experts)


if __name__ == "__main__":
    main(train, "4d", __doc__)
