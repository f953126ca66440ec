"""The order in which a rank computes the forwards and backwards of its pipeline stages, and what it holds meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import record_function

from dptrace.errors import UsageError
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.pipeline_stages import PipelineStages
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

# How many micro-batches' activations a rank of a pipeline holds at once, and the bytes that they take.
#
# ::
#
#     GPipe    F0 F1 F2 F3 B0 B1 B2 B3     holds 4
#     1F1B     F0 F1 B0 F2 B1 F3 B2 B3     holds 2


class InFlight:
    """Counts the activations of one step between the forward and the backward of each micro-batch.

    Args:
        parameters: the rank's parameters, which autograd keeps as well; they are no activations.
        in_bytes: whether to measure bytes, too: each tensor that autograd keeps then passes through Python.

    Attributes:
        peak: the most micro-batches held at once; one counts once for each of the rank's stages.
        peak_bytes: the most bytes that autograd kept for their backward; a storage counts once for a micro-batch.
    """

    def __init__(self, parameters: Iterable[Tensor], in_bytes: bool = True) -> None:
        self.in_bytes, self.open = in_bytes, True
        self.peak = self.peak_bytes = 0
        self._own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self._held: dict[tuple[int, int], dict[int, dict[int, int]]] = {}
        """Of a stage and a micro-batch: the bytes of each part of each storage."""
        self._latest = (-1, -1)

    @contextmanager
    def forward(self, stage: int, micro_batch: int) -> Iterator[None]:
        """Count the forward inside."""
        if self.open:
            self._latest = stage, micro_batch
            self._held[self._latest] = defaultdict(dict)
        with self.more():
            yield

    @contextmanager
    def more(self) -> Iterator[None]:
        """Count what is inside as a part of the latest forward: the loss of its output."""
        kept = self._held.get(self._latest)
        with nullcontext() if kept is None or not self.in_bytes else self._hooks(kept):
            yield
        if kept is not None:
            self.peak = max(self.peak, len(self._held))
            held = (parts for storages in self._held.values() for parts in storages.values())
            self.peak_bytes = max(self.peak_bytes, sum(sum(parts.values()) for parts in held))

    def backward(self, stage: int, micro_batch: int) -> None:
        """Release what the forward of this micro-batch has kept."""
        self._held.pop((stage, micro_batch), None)

    def close(self) -> None:
        """End the step: count no more."""
        self.open = False
        self._held.clear()

    def _hooks(self, kept: dict[int, dict[int, int]]) -> saved_tensors_hooks:
        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._own:
                size = min(tensor.numel() * tensor.element_size(), storage.nbytes())
                parts = kept[storage.data_ptr()]
                parts[tensor.data_ptr()] = max(parts.get(tensor.data_ptr(), 0), size)
            return tensor

        return saved_tensors_hooks(keep, lambda tensor: tensor)


class CountedStage(PipelineStage):
    """A stage that counts the activations in flight, for a loss that is already divided by the micro-batches."""

    in_flight: InFlight
    in_last_backward = False
    """Whether the latest backward is that of the last micro-batch, so that the gradients are complete after it."""
    named = False
    """Whether it labels its work as torch's newer schedules do: ``PP:0F3`` is stage 0's forward of micro-batch 3.
    GPipe's own labels do not contain the stage, and 1F1B has no labels."""
    micro_batch_offset = 0
    """Micro-batches of this step that were done before those of the schedule."""

    def scale_grads(self, grad_scale_factor: int) -> None:
        """Leave the gradients as they are, which may be on their way to other ranks."""

    def _label(self, letter: str, chunk: int) -> AbstractContextManager[Any]:
        if not self.named:
            return nullcontext()
        return record_function(f"PP:{self.stage_index}{letter}{self.micro_batch_offset + chunk}")

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of one micro-batch."""
        with self._label("F", fwd_chunk_id), self.in_flight.forward(self.stage_index, fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the backward of one micro-batch, or the part of it that another stage waits for."""
        self.in_last_backward = kwargs.get("last_backward", False)
        with self._label("B", bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        if kwargs.get("full_backward", True):
            self.in_flight.backward(self.stage_index, bwd_chunk_id)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the rest of the backward of one micro-batch."""
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
        self.in_flight.backward(self.stage_index, bwd_chunk_id)


_SCHEDULES: dict[str, Any] = {
    "naive": ScheduleGPipe,
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}
"""naive is GPipe with one micro-batch after the other."""


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
        self.stages: list[Any] = []
        for number, module in pipeline_stages.stages.items():
            known: dict[str, Any] = {"group": pipeline_stages.group}
            if shapes is not None:
                known["input_args"], known["output_args"] = shapes[number]
            stage: Any = CountedStage(module, number, pipeline_stages.count, device, **known)
            stage.in_flight, stage.named = self.in_flight, schedule in ("naive", "gpipe", "1f1b")
            self.stages.append(stage)
        self.naive = schedule == "naive"
        schedule_type = _SCHEDULES[schedule]
        # Nothing here reads the outputs. torch has the option from 2.10 on; older versions pass those that they do not
        # know to the model.
        has_option = "return_outputs" in signature(schedule_type.step).parameters
        self._step_settings = {"return_outputs": False} if has_option else {}
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
        if self.in_flight.open:  # keep the count of the first step; all others are alike, and counting takes time
            self.in_flight.close()
            size = self.in_flight.peak_bytes if self.in_flight.in_bytes else None
            self.facts |= {"in_flight": self.in_flight.peak, "in_flight_bytes": size}
        return torch.stack(losses).sum() * self.replicas / self.scaler.get_scale() if losses else None

    def _run(self, x: Tensor, y: Tensor) -> list[Tensor]:
        losses: list[Tensor] = []
        inputs = (x,) if self.stages[0].is_first else ()
        targets = {"target": y, "losses": losses} if self.stages[-1].is_last else {}
        self.schedule.step(*inputs, **targets, **self._step_settings)
        return [loss.detach() for loss in losses]
