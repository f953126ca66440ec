"""The order in which a rank computes the forwards and backwards of its pipeline stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dptrace.errors import UsageError
from dptrace.trainers.parts.counted_stage import CountedStage, InFlight, NamedStage
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.pipeline_stages import PipelineStages
from dptrace.trainers.parts.task import Task

try:
    from torch.distributed.pipelining import (
        Schedule1F1B,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
        ScheduleInterleavedZeroBubble,
    )
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti
except ImportError:
    raise UsageError("Pipelines need torch's zero-bubble schedule: install torch 2.6 or later.") from None


_SCHEDULES: dict[str, Any] = {
    "naive": ScheduleGPipe,
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}
"""naive is GPipe with one micro-batch after the other."""


def step_settings(step: Callable[..., Any]) -> dict[str, bool]:
    """Return the options that keep a schedule's step from collecting the outputs, which nothing here reads.

    torch has that option from 2.10 on; older versions pass options that they do not know to the model.
    """
    return {"return_outputs": False} if "return_outputs" in signature(step).parameters else {}


class Pipeline:
    """This rank's part of the schedule that the options name.

    Args:
        replicas: pipelines that each train on a part of the batch; the sum of their gradients is that of the batch.
        shapes: the input and the output of each stage for one micro-batch, as tensors on the meta device; without it,
            torch runs the stages once to find out.
    """

    def __init__(
        self,
        task: Task,
        pipeline_stages: PipelineStages,
        optimizer_wrapper: OptimizerWrapper,
        replicas: int = 1,
        shapes: Sequence[tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self.task, self.scaler, self.replicas = task, optimizer_wrapper.scaler, replicas
        options, device = task.options, task.world.device
        schedule, self.micro_batches = options.schedule, options.micro_batches
        self.scaler.scale(torch.zeros((), device=device))  # ranks without a loss need the scale too
        self.in_flight = InFlight(pipeline_stages.model.parameters(), in_bytes=not options.compile)
        stage_type: Any = NamedStage if schedule in ("naive", "gpipe", "1f1b") else CountedStage
        self.stages: list[Any] = []
        for number, module in pipeline_stages.stages.items():
            known = {} if shapes is None else dict(zip(("input_args", "output_args"), shapes[number], strict=True))
            stage = stage_type(module, number, pipeline_stages.count, device, group=pipeline_stages.group, **known)
            stage.in_flight = self.in_flight
            self.stages.append(stage)
        self.naive = schedule == "naive"
        schedule_type = _SCHEDULES[schedule]
        self._step_settings = step_settings(schedule_type.step)
        several = issubclass(schedule_type, PipelineScheduleMulti)
        self.schedule: Any = schedule_type(
            self.stages if several else self.stages[0], 1 if self.naive else self.micro_batches, self._loss
        )
        task.rank_entry["pipeline"] = self.facts = {
            "schedule": schedule,
            "rank": dist.get_rank(pipeline_stages.group),
            "ranks": pipeline_stages.ranks,
            "stages": list(pipeline_stages.stages),
            "micro_batches": self.micro_batches,
        }

    @property
    def in_last_backward(self) -> bool:
        """Whether the backward that runs is the last of a step, after which the gradients are complete."""
        return all(stage.in_last_backward for stage in self.stages)

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        # The sum over micro-batches and replicas is the mean over the batch.
        with self.in_flight.more():
            return self.scaler.scale(self.task.loss(output, target) / (self.micro_batches * self.replicas))

    def step(self, x: Tensor, y: Tensor) -> Tensor | None:
        """Compute the gradients of a batch; return its loss on the last stage's rank, None on the others."""
        losses: list[Tensor] = []
        if self.naive:
            chunks = zip(x.chunk(self.micro_batches), y.chunk(self.micro_batches), strict=True)
            for number, (micro_x, micro_y) in enumerate(chunks):
                self.stages[0].micro_batch_offset = number
                losses += self._run(micro_x, micro_y)
        else:
            losses = self._run(x, y)
        self._count_once()
        return torch.stack(losses).sum() * self.replicas / self.scaler.get_scale() if losses else None

    def _count_once(self) -> None:
        """Keep the count of the first step; all others are alike, and counting takes time."""
        if self.in_flight.open:
            self.in_flight.close()
            size = self.in_flight.peak_bytes if self.in_flight.in_bytes else None
            self.facts |= {"in_flight": self.in_flight.peak, "in_flight_bytes": size}

    def _run(self, x: Tensor, y: Tensor) -> list[Tensor]:
        losses: list[Tensor] = []
        inputs = (x,) if self.stages[0].is_first else ()
        targets = {"target": y, "losses": losses} if self.stages[-1].is_last else {}
        self.schedule.step(*inputs, **targets, **self._step_settings)
        return [loss.detach() for loss in losses]
