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

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from dptrace.record import Options, World, parse_options, phase, process_group, record, save_parameters
from dptrace.record.options.validation import check_pipeline
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.pipeline import NamedStage, PipelineStages, split_into_stages
from dptrace.trainers.parts.task import Task, build_task


class Pipeline:
    """This rank's part of the schedule."""

    def __init__(
        self,
        options: Options,
        world: World,
        task: Task,
        pipeline_stages: PipelineStages,
        optimizer_wrapper: OptimizerWrapper,
    ) -> None:
        self.naive, self.micro_batches = options.schedule == "naive", options.micro_batches
        self.device, self.optimizer_wrapper, self.task = world.device, optimizer_wrapper, task
        stage_type = NamedStage if options.schedule in ("naive", "gpipe", "1f1b") else PipelineStage
        self.stages: list[Any] = [
            stage_type(module, n, pipeline_stages.count, world.device) for n, module in pipeline_stages.stages.items()
        ]
        self.first, self.last = 0 in pipeline_stages.stages, pipeline_stages.count - 1 in pipeline_stages.stages
        optimizer_wrapper.scaler.scale(torch.zeros((), device=world.device))  # ranks without a loss need it too
        multi_stage = {"interleaved": ScheduleInterleaved1F1B, "zero-bubble": ScheduleInterleavedZeroBubble}
        # torch divides the gradients by the number of micro-batches: the mean of their means is that of the batch.
        if options.schedule in multi_stage:
            self.schedule: Any = multi_stage[options.schedule](self.stages, self.micro_batches, self._loss)
        elif options.schedule == "1f1b":
            self.schedule = Schedule1F1B(self.stages[0], self.micro_batches, self._loss)
        else:
            self.schedule = ScheduleGPipe(self.stages[0], 1 if self.naive else self.micro_batches, self._loss)

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.optimizer_wrapper.scaler.scale(self.task.loss(output, target))

    def step(self, x: Tensor, y: Tensor) -> Tensor | None:
        """Compute the gradients of a batch; return its loss on the last stage's rank, None on the others."""
        losses: list[Tensor] = []
        if self.naive:
            chunks = zip(x.chunk(self.micro_batches), y.chunk(self.micro_batches), strict=True)
            for number, (micro_x, micro_y) in enumerate(chunks):
                self.stages[0].micro_batch_offset = number
                losses += self._run(micro_x, micro_y)
            self.stages[0].scale_grads(self.micro_batches)
        else:
            losses = self._run(x, y)
        return torch.stack(losses).mean() / self.optimizer_wrapper.scaler.get_scale() if losses else None

    def _run(self, x: Tensor, y: Tensor) -> list[Tensor]:
        losses: list[Tensor] = []
        inputs = (x,) if self.first else ()
        targets = {"target": y, "losses": losses} if self.last else {}
        self.schedule.step(*inputs, **targets, return_outputs=False)
        return [loss.detach() for loss in losses]


def train(options: Options, world: World) -> None:
    check_pipeline(vars(options), world.size)
    task = build_task(options, world)
    pipeline_stages = split_into_stages(task.model, options.virtual_stages)
    del task.model  # keep only this rank's stages
    optimizer_wrapper = OptimizerWrapper(pipeline_stages.model, options, shard_group=dist.group.WORLD)
    pipeline = Pipeline(options, world, task, pipeline_stages, optimizer_wrapper)

    with record(model=pipeline_stages.model, **options.record_arguments) as recording:
        recording.parameters = pipeline_stages.parameters
        for x, y in task.batches(recording.total_steps, index=0, count=1):
            loss = pipeline.step(x, y)

            with phase("optimizer"):
                optimizer_wrapper.step()
            recording.step(loss)

        full_parameters = pipeline_stages.full_parameters()
    save_parameters(pipeline_stages.model, options.save_parameters, full_parameters)


if __name__ == "__main__":
    options = parse_options(__doc__, "pp")
    with process_group() as world:
        train(options, world)
