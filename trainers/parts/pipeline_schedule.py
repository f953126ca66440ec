"""The order in which a rank computes the forwards and backwards of its pipeline stages."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from dptrace.errors import UsageError
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.pipeline import PipelineStages
from dptrace.trainers.parts.task import Task

try:
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
        ScheduleInterleavedZeroBubble,
    )
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti
except ImportError:
    raise UsageError("Pipelines need torch's zero-bubble schedule: install torch 2.6 or later.") from None

__all__ = ["NamedStage", "Pipeline", "step_settings"]

_SCHEDULES: dict[str, Any] = {
    "naive": ScheduleGPipe,
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}
"""naive is GPipe with one micro-batch after the other."""


class NamedStage(PipelineStage):
    """A stage that labels its work as torch's newer schedules do: ``PP:0F3`` is stage 0's forward of micro-batch 3.

    GPipe's own labels do not contain the stage, and 1F1B has no labels.
    """

    micro_batch_offset = 0
    """Micro-batches of this step that were done before those of the schedule."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of one micro-batch."""
        with record_function(f"PP:{self.stage_index}F{self.micro_batch_offset + fwd_chunk_id}"):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the backward of one micro-batch."""
        with record_function(f"PP:{self.stage_index}B{self.micro_batch_offset + bwd_chunk_id}"):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)


def step_settings(step: Callable[..., Any]) -> dict[str, bool]:
    """Return the options that keep a schedule's step from collecting the outputs, which nothing here reads.

    torch has that option from 2.10 on; older versions pass options that they do not know to the model.
    """
    return {"return_outputs": False} if "return_outputs" in signature(step).parameters else {}


class Pipeline:
    """This rank's part of the schedule that the options name."""

    def __init__(self, task: Task, pipeline_stages: PipelineStages, optimizer_wrapper: OptimizerWrapper) -> None:
        self.task, self.scaler = task, optimizer_wrapper.scaler
        schedule, self.micro_batches, device = task.options.schedule, task.options.micro_batches, task.world.device
        self.scaler.scale(torch.zeros((), device=device))  # ranks without a loss need the scale too
        stage_type = NamedStage if schedule in ("naive", "gpipe", "1f1b") else PipelineStage
        self.stages: list[Any] = [
            stage_type(module, number, pipeline_stages.count, device, group=pipeline_stages.group)
            for number, module in pipeline_stages.stages.items()
        ]
        self.naive = schedule == "naive"
        # torch divides the gradients by the number of micro-batches: the mean of their means is that of the batch.
        schedule_type = _SCHEDULES[schedule]
        self._step_settings = step_settings(schedule_type.step)
        several = issubclass(schedule_type, PipelineScheduleMulti)
        self.schedule: Any = schedule_type(
            self.stages if several else self.stages[0], 1 if self.naive else self.micro_batches, self._loss
        )

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.scaler.scale(self.task.loss(output, target))

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
        return torch.stack(losses).mean() / self.scaler.get_scale() if losses else None

    def _run(self, x: Tensor, y: Tensor) -> list[Tensor]:
        losses: list[Tensor] = []
        inputs = (x,) if self.stages[0].is_first else ()
        targets = {"target": y, "losses": losses} if self.stages[-1].is_last else {}
        self.schedule.step(*inputs, **targets, **self._step_settings)
        return [loss.detach() for loss in losses]
