"""Data, pipeline and tensor parallel at once: the mesh of ranks on which the largest models are trained.

::

    ranks 0 1 ─► 2 3     ranks 0 and 1 split the layers of the first stage, 2 and 3 those of the second
    ranks 4 5 ─► 6 7     both stages again, for the other half of the batch

The ranks that communicate most are neighbors: those that all-reduce the activations of a stage (tp); stages pass on
micro-batches (pp, in the order of 1F1B); and once a step, the ranks that hold the same part of the same stage
all-reduce the gradients (dp), each as soon as the last micro-batch's backward has passed its layer.

    dptrace record --mode 3d --gpus 8 --tp 2 --pp 2
    torchrun --nproc-per-node 8 mesh_3d.py --steps 4 --tp 2 --pp 2
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from dptrace.record import Options, World, assert_in_sync
from dptrace.trainers.parts.collectives import GradientSums, coordinates
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.pipeline_stages import split_into_stages
from dptrace.trainers.parts.task import build_task, main
from dptrace.trainers.parts.tensor_parallel import TensorParallel


def train(options: Options, world: World) -> None:
    from dptrace.trainers.parts.pipeline_schedule import Pipeline  # a torch without it is reported here

    replicas = world.size // (options.pp * options.tp)
    mesh = init_device_mesh(world.device.type, (replicas, options.pp, options.tp), mesh_dim_names=("dp", "pp", "tp"))
    groups = {name: mesh.get_group(name) for name in ("dp", "pp", "tp")}
    tensors = TensorParallel(groups["tp"])
    task = build_task(options, world, tensors.split)
    task.rank_entry["coordinates"] = coordinates(mesh)
    replica_counts = tensors.replica_counts(task.model, replicas)
    pipeline_stages = split_into_stages(task.model, group=groups["pp"])
    (model,) = pipeline_stages.model
    del task.model  # keep only this rank's stage
    optimizer_wrapper = OptimizerWrapper(model, options, shard_group=dist.group.WORLD, replica_counts=replica_counts)
    pipeline = Pipeline(task, pipeline_stages, optimizer_wrapper, replicas)
    gradient_sums = GradientSums(lambda: pipeline.in_last_backward)
    gradient_sums.add(model.named_parameters(), groups["dp"])

    with task.record(model, tensors.parameters) as recording:
        for x, y in task.batches(recording.total_steps, shard=(mesh.get_local_rank("dp"), replicas)):
            loss = pipeline.step(x, y)
            gradient_sums.wait()
            optimizer_wrapper.step()
            recording.step(loss)

        assert_in_sync(model, group=groups["dp"])
        task.full_parameters = tensors.full_parameters(pipeline_stages.full_parameters().items())


if __name__ == "__main__":
    main(train, "3d", __doc__)
