"""Figures of one GPU that need only its own trace."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from dptrace.analysis.per_gpu.arrivals import Arrivals, arrivals
from dptrace.analysis.per_gpu.idle import idle
from dptrace.analysis.per_gpu.split import Part, Split, collective_exposure, compute_of, part_intervals_of, split
from dptrace.core.intervals import Int64, IntervalSet, covered, intersect, union
from dptrace.timeline.model import Kind, Phase, Timeline
from dptrace.timeline.steps import select_steps_with_mask

__all__ = ["DeviceFigures", "figures_of"]


class DeviceFigures(msgspec.Struct, frozen=True):
    """The timeline of one GPU and all figures that need no other rank."""

    timeline: Timeline
    split: Split
    exposed_ns: Int64
    """Exposed time of each interval of the timeline on its own; 0 for non-communication."""
    overlapped_ns: Int64
    exposed: IntervalSet
    """When communication ran without compute: the intervals behind ``exposed_comm_ns``."""
    idle_causes: dict[str, Int64]
    """By the names in ``idle.CAUSES``: idle ns in each step; the causes add up to the split's idle time."""
    host_gaps: IntervalSet
    """Idle gaps, 50 µs and longer, that ended with work which the host launched late."""
    arrivals: Arrivals
    """What held up each collective of the timeline."""
    backward_start_ns: Int64
    """Start of the first backward kernel of each step; 0 without any."""
    backward_end_ns: Int64
    """End of the last backward kernel of each step; 0 without any."""
    recompute_ns: Int64
    """Recomputed forward work in each step; part of backward's compute."""
    parameter_search_ns: Int64
    """Time the host searched for unused parameters in each step."""
    parameter_search_idle_ns: Int64
    """The part of the search during which the GPU was idle; on a CPU all of it, since the host computes."""

    def mean_idle(self) -> dict[str, float]:
        """Return the mean idle time of a step in ns by cause; the causes add up to the mean idle time."""
        return {cause: float(values.mean()) for cause, values in self.idle_causes.items()}

    def shared_exposed(self) -> Int64:
        """Return each collective's share of the exposed time, so that concurrent collectives add up to the step's."""
        comm = self.timeline.collective >= 0
        exposed, step = self.exposed_ns[comm], self.timeline.step[comm]
        inside = step >= 0
        exposed_per_step = np.zeros(len(self.timeline.windows), np.int64)
        np.add.at(exposed_per_step, step[inside], exposed[inside])
        whole = self.split.figures["exposed_comm_ns"]
        share = np.append(np.minimum(whole / np.maximum(exposed_per_step, 1), 1.0), 1.0)
        shared: Int64 = np.floor(exposed * share[np.where(inside, step, -1)]).astype(np.int64)
        return shared

    def only_communication(self) -> DeviceFigures:
        """Drop all other intervals; the figures remain those of the whole timeline."""
        chosen = self.timeline.kind == Kind.COMMUNICATION
        return replace(
            self,
            timeline=self.timeline.filter(chosen),
            exposed_ns=self.exposed_ns[chosen],
            overlapped_ns=self.overlapped_ns[chosen],
        )

    def first_steps(self, count: int) -> DeviceFigures:
        """Keep the first *count* steps with their figures."""
        if not 0 < count < len(self.timeline.windows):
            return self
        timeline, kept = select_steps_with_mask(self.timeline, 0, count - 1)
        return DeviceFigures(
            timeline,
            self.split.first(count),
            self.exposed_ns[kept],
            self.overlapped_ns[kept],
            self.exposed,
            {name: values[:count] for name, values in self.idle_causes.items()},
            self.host_gaps,
            self.arrivals.filter(kept[self.timeline.kind == Kind.COMMUNICATION]),
            *(column[:count] for column in (self.backward_start_ns, self.backward_end_ns, self.recompute_ns)),
            *(column[:count] for column in (self.parameter_search_ns, self.parameter_search_idle_ns)),
        )

    def with_rank(self, rank: int) -> DeviceFigures:
        """Return a copy with another rank number."""
        return replace(self, timeline=replace(self.timeline, rank=rank), split=replace(self.split, rank=rank))


def figures_of(timeline: Timeline) -> DeviceFigures:
    """Compute all figures of a timeline."""
    part_intervals = part_intervals_of(timeline)
    compute = compute_of(timeline)
    exposed, overlapped = collective_exposure(timeline, compute)
    why = idle(timeline, part_intervals)
    flagged = timeline.recompute & (timeline.kind == Kind.COMPUTE)
    idle_time = intersect(timeline.parameter_search, why.idle)
    return DeviceFigures(
        timeline,
        split(timeline, part_intervals, compute),
        exposed,
        overlapped,
        part_intervals[Part.EXPOSED_COMM],
        why.causes,
        why.host_gaps,
        arrivals(timeline),
        *_backward(timeline),
        recompute_ns=_per_step(timeline, union(timeline.start_ns[flagged], timeline.end_ns[flagged])),
        parameter_search_ns=_per_step(timeline, timeline.parameter_search),
        parameter_search_idle_ns=_per_step(timeline, timeline.parameter_search if timeline.on_cpu else idle_time),
    )


def _per_step(timeline: Timeline, when: IntervalSet) -> Int64:
    return np.diff(covered(when, timeline.windows.bounds))


def _backward(timeline: Timeline) -> tuple[Int64, Int64]:
    count = len(timeline.windows)
    starts, ends = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    backward = (timeline.kind == Kind.COMPUTE) & (timeline.phase == Phase.BACKWARD) & (timeline.step >= 0)
    np.minimum.at(starts, timeline.step[backward], timeline.start_ns[backward])
    np.maximum.at(ends, timeline.step[backward], timeline.end_ns[backward])
    return np.where(ends > 0, starts, 0), ends
