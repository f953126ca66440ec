"""What is told of one GPU by its own file alone: its timeline, and the figures that need no other rank."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dptrace.analysis.per_gpu.idle import Account, idle
from dptrace.analysis.per_gpu.split import Split, collective_exposure, part_intervals_of, split, union_all
from dptrace.core.intervals import Int64, IntervalSet, covered, intersect, union
from dptrace.timeline.model import Kind, Phase, Timeline
from dptrace.timeline.steps import select_steps_with_mask

__all__ = ["DeviceFigures", "figures_of"]


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """One GPU, and what is told of it by its own file alone."""

    timeline: Timeline
    split: Split
    exposed_ns: Int64
    """Exposed time of each interval of the timeline by itself; 0 of what is not communication."""
    overlapped_ns: Int64
    idle_causes: dict[str, Int64]
    """By the names in ``idle.CAUSES``: idle ns in each step; they add up to the split's."""
    spent_ns: Int64
    """Of each collective, in the order of the timeline: what was spent on each ``idle.Account`` before it
    began and before it ended; an array of collectives by 2 by accounts, from any common origin."""
    backward_start_ns: Int64
    """When the first of each step's backward kernels began; 0 in a step without any."""
    backward_end_ns: Int64
    """When the last of each step's backward kernels ended; 0 in a step without any."""
    recompute_ns: Int64
    """Forward's compute done again in backward, in each step: a part of backward's."""
    parameter_search_ns: Int64
    """How long the host searched for unused parameters in each step."""
    parameter_search_idle_ns: Int64
    """The part of it in which the GPU was idle; on a CPU all of it, since the host is what computes."""

    def mean_idle(self) -> dict[str, float]:
        """Give the mean step's idle time in ns by cause; causes add up to the mean step's idle time."""
        return {cause: float(values.mean()) for cause, values in self.idle_causes.items()}

    def shared_exposed(self) -> Int64:
        """Give each collective's exposed time, where several run at once its share of it: the sum is the step's."""
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
        """Drop all other intervals; the figures are still those of the whole."""
        chosen = self.timeline.kind == Kind.COMMUNICATION
        return replace(
            self,
            timeline=self.timeline.filter(chosen),
            exposed_ns=self.exposed_ns[chosen],
            overlapped_ns=self.overlapped_ns[chosen],
        )

    def first_steps(self, count: int) -> DeviceFigures:
        """Keep the first *count* steps, with the figures that they have in the whole."""
        if not 0 < count < len(self.timeline.windows):
            return self
        timeline, kept = select_steps_with_mask(self.timeline, 0, count - 1)
        return DeviceFigures(
            timeline,
            self.split.first(count),
            self.exposed_ns[kept],
            self.overlapped_ns[kept],
            {name: values[:count] for name, values in self.idle_causes.items()},
            self.spent_ns[kept[self.timeline.kind == Kind.COMMUNICATION]],
            *(column[:count] for column in (self.backward_start_ns, self.backward_end_ns, self.recompute_ns)),
            *(column[:count] for column in (self.parameter_search_ns, self.parameter_search_idle_ns)),
        )

    def with_rank(self, rank: int) -> DeviceFigures:
        """Give the same as another rank's."""
        return replace(self, timeline=replace(self.timeline, rank=rank), split=replace(self.split, rank=rank))


def figures_of(timeline: Timeline) -> DeviceFigures:
    """Compute what a timeline tells by itself."""
    part_intervals = part_intervals_of(timeline)
    exposed, overlapped = collective_exposure(timeline)
    why = idle(timeline, part_intervals)
    comm = timeline.kind == Kind.COMMUNICATION
    spent = np.stack((why.spent(timeline.start_ns[comm]), why.spent(timeline.end_ns[comm])), axis=1)
    flagged = timeline.recompute & (timeline.kind == Kind.COMPUTE)
    idle_time = intersect(timeline.parameter_search, union_all([*why.sets[Account.DATA_LOADING :]]))
    return DeviceFigures(
        timeline,
        split(timeline, part_intervals),
        exposed,
        overlapped,
        why.causes,
        spent,
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
