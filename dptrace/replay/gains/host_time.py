"""Host time that is taken out of a run: what hosts spend on one thing, and what single delays of ranks took."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, IntervalSet, covered
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.host_pieces import HostPieces, cut_longest, host_pieces
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.graph.per_rank.process import Process
from dptrace.replay.simulation.changes import with_times
from dptrace.replay.simulation.simulate import NEVER
from dptrace.timeline.model import Timeline

__all__ = ["HostTime", "LevelRanks", "Segment", "host_time"]

_MOSTLY = 0.5
"""Share of a blocking call from which it counts as what it overlaps."""


class HostTime(msgspec.Struct, frozen=True, eq=False):
    """What hosts do at some times takes no time."""

    what: str
    when: tuple[IntervalSet, ...]
    """Of each process, on the shared clock."""
    waits: bool = False
    """Whether calls at these times wait for nothing, either."""
    collectives: bool = False
    host: bool = True

    def describe(self) -> str:
        return self.what

    def apply(self, model: Model) -> Model:
        durations, lags = model.graph.duration_ns.copy(), model.graph.edge.lag_ns.copy()
        for process, when in zip(model.processes, self.when, strict=True):
            pieces = host_pieces(model, process)
            pieces.cut(np.minimum(_within(when, pieces), pieces.length_ns), durations, lags)
            if self.waits:
                lags[_waits_of(model, process, when)] = NEVER
        return with_times(model, durations, lags)


def host_time(
    model: Model, what: str, when: Callable[[Timeline], IntervalSet], *, waits: bool = False
) -> HostTime | None:
    """Take out of a model what *when* gives on the clock of each process's first timeline; None if that is nothing."""
    clocks = model.run.cross_rank.clocks
    times: list[IntervalSet] = []
    for process in model.processes:
        number = process.timelines[0][0]
        start, end = when(model.run.timelines[number])
        times.append((clocks.align(number, start), clocks.align(number, end)))
    return HostTime(what, tuple(times), waits) if any(len(start) for start, _ in times) else None


def _within(when: IntervalSet, pieces: HostPieces) -> Int64:
    """Return how much of each piece is at these times."""
    inside: Int64 = covered(when, pieces.end_ns) - covered(when, pieces.start_ns)
    return inside


def _waits_of(model: Model, process: Process, when: IntervalSet) -> Int64:
    """Return the edges by which blocking calls at these times wait for the device."""
    graph, host, event = model.graph, process.host, process.blocking.event
    start, end = host.start_ns[event], host.end_ns[event]
    inside = covered(when, end) - covered(when, start) > _MOSTLY * (end - start)
    returns = np.zeros(len(graph), np.bool_)
    returns[process.host_tasks.finish[event[inside]]] = True
    return np.flatnonzero(graph.edge.of(EdgeKind.SYNCHRONIZE, EdgeKind.QUEUE) & returns[graph.edge.dst])


class Segment(msgspec.Struct, frozen=True):
    """The part of the program in which a rank lost time, on the shared clock."""

    process: int
    start_ns: int
    end_ns: int
    late_ns: int
    """How much time it lost."""
    on_device: bool = False
    """Whether its device was slow, and not its host."""


class LevelRanks(msgspec.Struct, frozen=True):
    """Some ranks lose no time in some segments: they are as early as the others are."""

    what: str
    segments: tuple[Segment, ...]
    waits: bool = False
    """Whether calls of the host in these segments wait for nothing, either."""
    collectives: bool = True
    host: bool = True

    def describe(self) -> str:
        return self.what

    def apply(self, model: Model) -> Model:
        durations, lags = model.graph.duration_ns.copy(), model.graph.edge.lag_ns.copy()
        for segment in self.segments:
            process = model.processes[segment.process]
            if segment.on_device and not model.run.on_cpu:
                tasks = _launched_in(model, process, segment)
                durations[tasks] -= _proportional(durations[tasks], segment.late_ns)
                continue
            pieces = _cut_to(host_pieces(model, process), segment)
            pieces.cut(_cut(pieces.length_ns, segment.late_ns), durations, lags)
            if self.waits:
                when = np.array([segment.start_ns], np.int64), np.array([segment.end_ns], np.int64)
                lags[_waits_of(model, process, when)] = NEVER
        # Two segments may share a pause.
        return with_times(model, np.maximum(durations, 0), _not_below(lags, model))


def _launched_in(model: Model, process: Process, segment: Segment) -> Int64:
    """Return the kernels and copies of a process that were launched in a segment."""
    task = process.interval_tasks[model.graph.of(TaskKind.COMPUTE, TaskKind.MEMORY)[process.interval_tasks]]
    by = process.device.launched_by[task - process.interval_tasks[:1].sum()]
    launched = process.host.start_ns[by]
    chosen: Int64 = task[(by >= 0) & (launched >= segment.start_ns) & (launched < segment.end_ns)]
    return chosen


def _cut(lengths: Int64, ns: int) -> Int64:
    """Return what to take from each piece: of the longest first, and of all where many short ones took the time."""
    cut = cut_longest(lengths, ns)
    return cut + _proportional(lengths - cut, ns - int(cut.sum()))


def _proportional(lengths: Int64, ns: int) -> Int64:
    total = int(lengths.sum())
    part: Int64 = np.floor(lengths * min(1.0, ns / max(1, total))).astype(np.int64)
    return part


def _cut_to(pieces: HostPieces, segment: Segment) -> HostPieces:
    """Return the pieces that lie in a segment at least in part, as long as that part."""
    inside = np.minimum(pieces.end_ns, segment.end_ns) - np.maximum(pieces.start_ns, segment.start_ns)
    kept: NDArray[np.bool_] = inside > 0
    length = np.minimum(pieces.length_ns, inside)[kept]
    return HostPieces(pieces.start_ns[kept], pieces.end_ns[kept], length, pieces.index[kept])


def _not_below(lags: Int64, model: Model) -> Int64:
    """Return the lags, but none below 0 that was not."""
    recorded = model.graph.edge.lag_ns
    return np.where(lags == NEVER, lags, np.maximum(lags, np.minimum(recorded, 0)))
