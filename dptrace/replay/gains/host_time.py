"""Host time that is taken out of a run: what hosts spend on one thing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from dptrace.core.intervals import Int64, IntervalSet, covered
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.host_pieces import HostPieces, host_pieces
from dptrace.replay.graph.model import EdgeKind
from dptrace.replay.graph.per_rank.process import Process
from dptrace.replay.simulation.changes import with_times
from dptrace.replay.simulation.simulate import NEVER
from dptrace.timeline.model import Timeline

__all__ = ["HostTime", "host_time"]

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
