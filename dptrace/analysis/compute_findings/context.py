"""The data that the detectors of compute findings share."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec

from dptrace.analysis.compute_findings.step_kernels import StepKernels, step_kernels
from dptrace.analysis.findings.finding import Finding
from dptrace.core.intervals import IntervalSet, union
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.timeline.model import Kind, Timeline

__all__ = ["ComputeContext"]


class ComputeContext(msgspec.Struct, frozen=True, dict=True):
    """The devices with steps, and the calls of each one's rank; calls are empty where they were not read."""

    timelines: tuple[Timeline, ...]
    calls: tuple[OperatorCalls, ...]

    @cached_property
    def kernels(self) -> StepKernels:
        """The compute kernels of all steps."""
        return step_kernels(self.timelines, self.calls)

    @cached_property
    def steps(self) -> int:
        """Number of steps of all devices together: a total divided by it is the mean per step and GPU."""
        return sum(len(timeline.windows) for timeline in self.timelines)

    @cached_property
    def wall_ns(self) -> float:
        """Mean length of a step."""
        return sum(int(t.windows.bounds[-1] - t.windows.bounds[0]) for t in self.timelines) / self.steps

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

    def finding(
        self, kind: str, text: str, advice: str, total_ns: float, evidence: dict[str, Any] | None = None
    ) -> Finding:
        """Create a finding from its total cost in all steps of all devices."""
        cost = int(total_ns) // self.steps
        return Finding(kind, text, advice, cost, cost / self.wall_ns if self.wall_ns else 0.0, evidence or {})

    def per_step(self, total: float) -> float:
        """Return the mean per step and device of a total."""
        return total / self.steps
