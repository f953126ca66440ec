"""Pipeline parallelism: each rank holds some of the layers, and micro-batches pass through the ranks in turn.

::

    rank 0   │ F0 │ F1 │ F2 │ F3 │    │ B0 │    │ B1 │ …      GPipe and 1F1B differ in the order of F and B
    rank 1   │    │ F0 │ F1 │ B0 │ F2 │ B1 │ F3 │ B2 │ …      and in how many activations they keep

With one micro-batch in flight (naive) all ranks but one are idle: a share of (p-1)/p of their time for p stages. With m
micro-batches in flight it is (p-1)/(m+p-1). GPipe runs all forwards, then all backwards, and keeps the activations of
all micro-batches; 1F1B alternates as soon as possible and keeps those of at most p. Interleaved gives each rank several
shorter stages, and zero-bubble delays the gradients of the weights, which no rank waits for, to fill the gaps.

    dptrace record --mode pp --gpus 4 --schedule 1f1b --micro-batches 16
    torchrun --nproc-per-node 4 pp.py --steps 4 --schedule gpipe
"""

from __future__ import annotations

import torch.distributed as dist

from dptrace.record import Options, World
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.pipeline_stages import split_into_stages
from dptrace.trainers.parts.task import build_task, main


def train(options: Options, world: World) -> None:
    from dptrace.trainers.parts.pipeline_schedule import Pipeline  # a torch without it is reported here

    task = build_task(options, world)
    pipeline_stages = split_into_stages(task.model, options.virtual_stages)
    del task.model  # keep only this rank's stages
    optimizer_wrapper = OptimizerWrapper(pipeline_stages.model, options, shard_group=dist.group.WORLD)
    pipeline = Pipeline(task, pipeline_stages, optimizer_wrapper)

    with task.record(pipeline_stages.model, pipeline_stages.parameters) as recording:
        for x, y in task.batches(recording.total_steps, shard=(0, 1)):
            loss = pipeline.step(x, y)
            optimizer_wrapper.step()
            recording.step(loss)

        task.full_parameters = pipeline_stages.full_parameters()


if __name__ == "__main__":
    main(train, "pp", __doc__)
