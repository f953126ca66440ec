"""The data that the detectors of compute findings share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.findings.finding import StepContext
from dptrace.analysis.kernels.attribution import attribute
from dptrace.core.columns import Columns
from dptrace.core.intervals import Int64, IntervalSet, union
from dptrace.model.flops import Cost, OperatorCall
from dptrace.model.operator_costs import cost
from dptrace.readers.trace import OperatorInputs
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.timeline.model import Kind, Timeline

# The compute kernels of the steps of all devices as columns, each with what identifies equal work.


class Work(msgspec.Struct, frozen=True):
    """What kernels have in common that should take the same time on the same GPU."""

    kernel: str
    """The kernel's name."""
    operator: str
    """The operator that owns it; empty for none."""
    call: OperatorCall
    """The operator's inputs."""
    cost: Cost | None
    """What one call of the operator computes and moves; None without a formula or recorded shapes."""


class StepKernels(Columns, frozen=True):
    """The compute kernels that steps launched, by device, then start; one entry per kernel in each column."""

    index: Int64
    """Index into ``work``."""
    device: Int64
    """Index of the device."""
    start_ns: Int64
    end_ns: Int64
    lane: Int64
    step: NDArray[np.int32]
    phase: NDArray[np.uint8]
    call: Int64
    """Number of the operator's call, unique among all devices; -1 without one."""
    recompute: NDArray[np.bool_]
    work: tuple[Work, ...] = ()

    @property
    def ns(self) -> Int64:
        """Duration of each kernel."""
        return self.end_ns - self.start_ns

    def of_work(self, values: Sequence[Any], dtype: Any = np.bool_) -> NDArray[Any]:
        """Turn a value per entry of ``work`` into a column."""
        return np.array(values, dtype)[self.index] if len(values) else np.zeros(len(self), dtype)


def step_kernels(timelines: Sequence[Timeline], recorded: Iterable[OperatorCalls]) -> StepKernels:
    """Collect the kernels of GPUs; on a CPU, operators contain each other, so there is none."""
    numbers: dict[tuple[str, str, OperatorInputs], int] = {}
    parts, origin = [], 0
    for device, (timeline, calls) in enumerate(zip(timelines, recorded, strict=True)):
        if timeline.on_cpu:
            continue
        chosen = np.flatnonzero((timeline.kind == Kind.COMPUTE) & (timeline.step >= 0))
        owner, recompute = _owners(timeline, calls)
        owner, recompute = owner[chosen], recompute[chosen]
        parts.append(
            StepKernels(
                _numbered(timeline, calls, chosen, owner, numbers),
                np.full(len(chosen), device),
                timeline.start_ns[chosen],
                timeline.end_ns[chosen],
                timeline.lane[chosen],
                timeline.step[chosen],
                timeline.phase[chosen],
                np.where(owner >= 0, owner + origin, -1),
                recompute,
            )
        )
        origin += len(calls)
    work = tuple(_work(*key) for key in numbers)
    return replace(StepKernels.concat(parts) if parts else StepKernels.empty(), work=work)


def _owners(timeline: Timeline, calls: OperatorCalls) -> tuple[Int64, NDArray[np.bool_]]:
    """Return the call that owns each interval, or -1, and whether it is recomputation."""
    if not len(calls):
        return np.full(len(timeline), -1, np.int64), timeline.recompute
    attribution = attribute(timeline, calls)  # on a GPU, an entry per interval, in the same order
    return attribution.owner, attribution.recompute | timeline.recompute


def _numbered(
    timeline: Timeline,
    calls: OperatorCalls,
    chosen: Int64,
    owner: Int64,
    numbers: dict[tuple[str, str, OperatorInputs], int],
) -> Int64:
    """Return the number of each kernel's work, numbering what is new.

    Kernel, operator and inputs are packed into one number, so that each combination is looked up once.
    """
    if not len(chosen):
        return np.empty(0, np.int64)
    operators, shapes = len(calls.calls.names) + 1, len(calls.table) + 1
    known = owner >= 0
    packed = timeline.name[chosen].astype(np.int64) * (operators * shapes)
    packed[known] += (calls.calls.name[owner[known]] + 1) * shapes + calls.inputs[owner[known]] + 1
    distinct, column = np.unique(packed, return_inverse=True)
    own = []
    for key in distinct.tolist():
        kernel, operator, given = key // (operators * shapes), key // shapes % operators - 1, key % shapes - 1
        what = (
            calls.calls.names[operator] if operator >= 0 else "",
            calls.table[given] if given >= 0 else OperatorInputs(),
        )
        own.append(numbers.setdefault((timeline.names[kernel], *what), len(numbers)))
    return np.array(own, np.int64)[column.reshape(-1)]


def _work(kernel: str, operator: str, inputs: OperatorInputs) -> Work:
    call = OperatorCall.recorded(operator, inputs.dims, inputs.dtypes, inputs.concrete, inputs.strides)
    return Work(kernel, operator, call, cost(call) if call.dims else None)


class ComputeContext(StepContext, frozen=True, dict=True):
    """The devices with steps, and the calls of each one's rank; calls are empty where they were not read."""

    timelines: tuple[Timeline, ...]
    calls: Iterable[OperatorCalls]
    """Of many ranks, read one after the other: only their kernels are kept."""

    @cached_property
    def kernels(self) -> StepKernels:
        """The compute kernels of all steps."""
        return step_kernels(self.timelines, self.calls)

    @cached_property
    def communication(self) -> tuple[IntervalSet, ...]:
        """When each device communicates."""
        return tuple(self._busy(timeline, Kind.COMMUNICATION) for timeline in self.timelines)

    @cached_property
    def compute(self) -> tuple[IntervalSet, ...]:
        """When each device computes."""
        return tuple(self._busy(timeline, Kind.COMPUTE) for timeline in self.timelines)

    @staticmethod
    def _busy(timeline: Timeline, kind: Kind) -> IntervalSet:
        chosen = timeline.kind == kind
        return union(timeline.start_ns[chosen], timeline.end_ns[chosen])

    def per_step(self, total: float) -> float:
        """Return the mean per step and device of a total."""
        return total / self.steps
