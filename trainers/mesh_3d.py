"""Data, pipeline and tensor parallel at once: the mesh of ranks on which the largest models are trained.

::

    ranks 0 1 ─► 2 3     ranks 0 and 1 split the layers of the first stage, 2 and 3 those of the second
    ranks 4 5 ─► 6 7     both stages again, for the other half of the batch

The ranks that communicate most are neighbors: those that all-reduce the activations of a stage (tp); stages pass on
micro-batches (pp, in the order of 1F1B); and once a step, the ranks that hold the same part of the same stage
all-reduce the gradients (dp).

    dptrace record --mode 3d --gpus 8 --tp 2 --pp 2
    torchrun --nproc-per-node 8 mesh_3d.py --steps 4 --tp 2 --pp 2
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import Schedule1F1B

from dptrace.record import Options, World, assert_in_sync, parse_options, phase, process_group, record, save_parameters
from dptrace.record.options.validation import check_mesh
from dptrace.trainers.parts.collectives import flat_gradients
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.pipeline import NamedStage, split_into_stages
from dptrace.trainers.parts.task import build_task
from dptrace.trainers.parts.tensor_parallel import TensorParallel


def train(options: Options, world: World) -> None:
    check_mesh(vars(options), world.size)
    replicas = world.size // (options.pp * options.tp)
    mesh = init_device_mesh(world.device.type, (replicas, options.pp, options.tp), mesh_dim_names=("dp", "pp", "tp"))
    groups = {name: mesh.get_group(name) for name in ("dp", "pp", "tp")}
    tensors = TensorParallel(groups["tp"])
    task = build_task(options, world, tensors.split)
    replica_counts = tensors.replica_counts(task.model, replicas)
    pipeline_stages = split_into_stages(task.model, group=groups["pp"])
    ((number, model),) = pipeline_stages.stages.items()
    task.model = model
    optimizer_wrapper = OptimizerWrapper(model, options, shard_group=dist.group.WORLD, replica_counts=replica_counts)
    optimizer_wrapper.scaler.scale(torch.zeros((), device=world.device))  # ranks without a loss need the scale too
    stage = NamedStage(model, number, options.pp, world.device, group=groups["pp"])
    schedule = Schedule1F1B(
        stage, options.micro_batches, lambda out, y: optimizer_wrapper.scaler.scale(task.loss(out, y))
    )

    with record(model=model, **options.record_arguments) as recording:
        recording.parameters = tensors.parameters
        for x, y in task.batches(recording.total_steps, index=mesh.get_local_rank("dp"), count=replicas):
            losses: list[Tensor] = []
            inputs = (x,) if stage.is_first else ()
            targets: dict[str, Any] = {"target": y, "losses": losses} if stage.is_last else {}
            schedule.step(*inputs, **targets, return_outputs=False)

            with flat_gradients(model) as gradients:
                gradients /= replicas
                dist.all_reduce(gradients, group=groups["dp"])

            scale = optimizer_wrapper.scaler.get_scale()
            with phase("optimizer"):
                optimizer_wrapper.step()
            recording.step(torch.stack(losses).mean() / scale if losses else None)

        assert_in_sync(model, group=groups["dp"])
        full_parameters = tensors.full_parameters(pipeline_stages.full_parameters().items())
    save_parameters(model, options.save_parameters, full_parameters)


if __name__ == "__main__":
    options = parse_options(__doc__, "3d")
    with process_group() as world:
        train(options, world)
