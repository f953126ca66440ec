"""Changes of a run: what they have in common, and those that scale time or take it out."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import EMPTY, Int64, IntervalSet, covered, subtract, unique
from dptrace.core.patterns import matches
from dptrace.core.units import duration
from dptrace.errors import DptraceError, UsageError
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import NEVER, EdgeKind, TaskKind
from dptrace.replay.graph.process import Process
from dptrace.replay.graph.tasks import host_pieces
from dptrace.replay.simulation import scaled, with_times, without_host
from dptrace.run.run import Run
from dptrace.timeline.model import Timeline


class Change(msgspec.Struct, frozen=True):
    """Something that is different in a run: it makes another model of one."""

    collectives: ClassVar[bool] = False
    """Whether it needs to know how long a collective waits and how long it transfers."""
    transfers: ClassVar[bool] = False
    """Whether it gains by what transfers take, so that waiting which counts as transfer is no gain."""
    host: ClassVar[bool] = False
    """Whether it changes what hosts do."""
    keeps_tasks: ClassVar[bool] = False
    """Whether it only shortens tasks and edges, so that others can be made with it."""
    what = ""

    def describe(self) -> str:
        """Return what changes, for a heading."""
        return self.what

    def apply(self, model: Model) -> Model:
        """Return the changed model.

        Raises:
            DptraceError: the run does not have what would change.
        """
        raise NotImplementedError

    def check(self, run: Run) -> None:
        """Refuse a whole run whose collectives show that it can't be different in this way, before it is replayed.

        Raises:
            DptraceError: the run does not have what would change.
        """

    def doubts(self, model: Model) -> tuple[str, ...]:
        """Return what it takes for granted, in sentences."""
        return ()

    def least_step_ns(self, model: Model) -> float:
        """Return how long a step takes at least with it, whatever the replay says."""
        return 0.0


def no_collectives(model: Model) -> DptraceError:
    """Return the error about a change of communication in a run that has none."""
    return DptraceError(
        f"{model.run.path}: the run has no collectives, so links and schedules do not matter to it. To predict more "
        "ranks from one, add --world-size N and --link NAME."
    )


# What options of a what-if ask for.


class Compute(Change, frozen=True):
    """Compute on all devices is faster by a factor; that of ranks that were not recorded, too."""

    speedup: float

    def describe(self) -> str:
        return f"compute {self.speedup:g}×"

    def apply(self, model: Model) -> Model:
        graph = model.graph
        durations = scaled(graph.duration_ns, graph.of(TaskKind.COMPUTE), 1 / self.speedup)
        peers = graph.edge.of(EdgeKind.PEER) & (graph.edge.lag_ns > NEVER)
        return with_times(model, durations, scaled(graph.edge.lag_ns, peers, 1 / self.speedup))


class Bandwidth(Change, frozen=True):
    """Links are faster by a factor; the latency of a collective stays, where sizes show it."""

    speedup: float
    collectives: ClassVar[bool] = True
    transfers: ClassVar[bool] = True

    def describe(self) -> str:
        return f"bandwidth {self.speedup:g}×"

    def apply(self, model: Model) -> Model:
        graph, transfers = model.graph, model.transfers
        moving = graph.of(TaskKind.TRANSFER, TaskKind.COMMUNICATION)
        if not moving.any():
            raise no_collectives(model)
        latency = np.zeros(len(graph), np.int64)
        for fit in model.run.cross_rank.fits:
            if fit.alpha_s:
                same = (transfers.kind == fit.kind) & (transfers.group == fit.group)
                latency[transfers.task[same]] = max(0, round(fit.alpha_s * 1e9))
        fixed = np.minimum(latency, graph.duration_ns)
        return with_times(model, fixed + scaled(graph.duration_ns - fixed, moving, 1 / self.speedup))


class Kernel(Change, frozen=True):
    """The kernels whose name matches take another share of their time."""

    pattern: str
    factor: float

    def describe(self) -> str:
        return f"kernels {self.pattern!r} {self.factor:g}×"

    def apply(self, model: Model) -> Model:
        graph = model.graph
        fits = np.array(matches(self.pattern, graph.names, "--kernel"), np.bool_)
        chosen = fits[graph.name] & graph.of(TaskKind.COMPUTE, TaskKind.MEMORY, TaskKind.COMMUNICATION)
        # A collective's kernel is an arrival: what it takes is its transfer.
        arrived = model.transfers.instance[fits[graph.name[model.transfers.arrival]]]
        chosen[model.transfers.task[arrived]] = True
        if not chosen.any():
            raise UsageError(f"--kernel {self.pattern!r} fits no kernel of the run.")
        return with_times(model, scaled(graph.duration_ns, chosen, self.factor))


class Straggler(Change, frozen=True):
    """The host of one rank is late by some time in every step."""

    rank: int
    late_ns: int
    host: ClassVar[bool] = True

    def describe(self) -> str:
        return f"rank {self.rank} {duration(self.late_ns)} late in each step"

    def apply(self, model: Model) -> Model:
        durations = model.graph.duration_ns.copy()
        found = False
        for timeline, (index, _) in zip(model.run.timelines, model.place, strict=True):
            if timeline.rank == self.rank and not found:
                found, process = True, model.processes[index]
                marks = process.mark_tasks[:-1]
                # Without marks the whole recording is one step.
                durations[marks if len(marks) else [process.first_task]] += self.late_ns
        if not found:
            known = ", ".join(map(str, model.run.ranks))
            raise UsageError(f"--straggler {self.rank}: rank {self.rank} is not in the run. Choose from {known}.")
        return with_times(model, durations)


class NoHostDelay(Change, frozen=True):
    """Hosts take no time: every launch is in the queue as soon as what the host waits for has happened."""

    host: ClassVar[bool] = True
    what = "no host delay"

    def apply(self, model: Model) -> Model:
        return without_host(model)


class PerfectOverlap(Change, frozen=True):
    """Nothing waits for a collective: all communication is hidden, as far as links have the time."""

    collectives: ClassVar[bool] = True
    transfers: ClassVar[bool] = True
    what = "perfect overlap"

    def apply(self, model: Model) -> Model:
        graph = model.graph
        edge = graph.edge
        waits = edge.of(EdgeKind.JOIN, EdgeKind.TIMED, EdgeKind.SYNCHRONIZE, EdgeKind.HIDDEN)
        collective = graph.of(TaskKind.TRANSFER, TaskKind.COMMUNICATION, TaskKind.ARRIVAL)
        if not collective.any():
            raise no_collectives(model)
        return with_times(model, lag_ns=np.where(waits & collective[edge.src], NEVER, edge.lag_ns))


# Device time that is taken out of a run: shorter kernels and transfers, hidden communication, waits of streams.


class ShorterTasks(Change, frozen=True, eq=False):
    """Some kernels, copies or transfers take less time."""

    what: str
    task: Int64
    less_ns: Int64
    """By how much each is shorter."""

    keeps_tasks: ClassVar[bool] = True

    def apply(self, model: Model) -> Model:
        durations = model.graph.duration_ns.copy()
        durations[self.task] = np.maximum(durations[self.task] - self.less_ns, 0)
        return with_times(model, durations)


class ShorterTransfers(ShorterTasks, frozen=True, eq=False):
    """Some transfers take less time, as far as it is known how long they take."""

    collectives: ClassVar[bool] = True
    transfers: ClassVar[bool] = True


class HiddenCollectives(Change, frozen=True):
    """The transfers of a kind of collective run under compute, as far as links have the time; late ranks remain late.

    In the graph they take no time. What they take on the links bounds the step from below.
    """

    kind: str
    collectives: ClassVar[bool] = True
    transfers: ClassVar[bool] = True
    keeps_tasks: ClassVar[bool] = True

    def describe(self) -> str:
        return f"no time in transfers of {self.kind}"

    def apply(self, model: Model) -> Model:
        hidden = _collectives(model, self.kind) & model.graph.of(TaskKind.TRANSFER, TaskKind.COMMUNICATION)
        return with_times(model, np.where(hidden, 0, model.graph.duration_ns))

    def least_step_ns(self, model: Model) -> float:
        """Return how long the links of the busiest rank need for the messages of a step.

        It is 0 where ranks are missing, since what their collectives take may be waiting.
        """
        most = 0.0
        if self.lacks_ranks(model):
            return most
        steps = max(process.step_count for process in model.processes)
        transfers = model.graph.of(TaskKind.TRANSFER, TaskKind.COMMUNICATION)
        for process in model.processes:
            own = model.over[process.interval_tasks]
            own = unique(own[transfers[own]])
            most = max(most, float(model.graph.duration_ns[own].sum()) / steps)
        return most

    def lacks_ranks(self, model: Model) -> bool:
        """Return whether the transfers of these collectives are unknown, since ranks were not recorded."""
        transfers = model.transfers
        return bool((~transfers.shown & _collectives(model, self.kind)[transfers.task]).any())


def _collectives(model: Model, kind: str) -> NDArray[np.bool_]:
    """Return which tasks are collectives of a kind, or their transfers."""
    chosen = np.zeros(len(model.graph), np.bool_)
    for timeline, (_, tasks) in zip(model.run.timelines, model.place, strict=True):
        known = np.array([one.kind == kind for one in timeline.collectives] + [False], np.bool_)
        own = tasks[known[timeline.collective] & (tasks >= 0)]
        chosen[own] = chosen[model.over[own]] = True
    return chosen


class NoStreamGaps(Change, frozen=True):
    """A kernel in a stream's queue starts when the one before it ends."""

    keeps_tasks: ClassVar[bool] = True
    what = "no gaps between queued kernels"

    def apply(self, model: Model) -> Model:
        edge = model.graph.edge
        return with_times(model, lag_ns=np.where(edge.of(EdgeKind.STREAM), np.minimum(edge.lag_ns, 0), edge.lag_ns))


class NoStreamWaits(Change, frozen=True):
    """No stream waits for another's kernels or copies; waits for collectives remain."""

    keeps_tasks: ClassVar[bool] = True
    what = "no stream waits for another's kernels or copies"

    def apply(self, model: Model) -> Model:
        graph, edge = model.graph, model.graph.edge
        work = graph.of(TaskKind.COMPUTE, TaskKind.MEMORY)
        waits = edge.of(EdgeKind.JOIN, EdgeKind.TIMED, EdgeKind.BUSY) & work[edge.src] & work[edge.dst]
        # A kernel of which nothing else is known would start at any time.
        others = np.bincount(edge.dst[~waits & (edge.lag_ns > NEVER // 2)], minlength=len(graph))
        return with_times(model, lag_ns=np.where(waits & (others[edge.dst] > 0), NEVER, edge.lag_ns))


# Host time that is taken out of a run: what hosts spend on one thing.

_MOSTLY = 0.5
"""Share of a blocking call from which it counts as what it overlaps."""


class HostTime(Change, frozen=True, eq=False, dict=True):
    """What hosts do at some times takes no time; one entry per call, pause or hand-over in each array."""

    what: str
    index: Int64
    """Of its task, or -1 - that of its edge."""
    twin: Int64
    """Of the edge that has the same lag after a wait, or -1."""
    inside_ns: Int64
    """How much of it is at these times."""
    waits: Int64
    """The edges by which calls at these times wait for the device, if they wait for nothing, either."""

    host: ClassVar[bool] = True
    keeps_tasks: ClassVar[bool] = True

    def apply(self, model: Model) -> Model:
        durations, lags = model.graph.duration_ns.copy(), model.graph.edge.lag_ns.copy()
        task, of_task, edge, of_edge, twin, has_twin = self._places
        durations[task] -= np.minimum(of_task, np.maximum(durations[task], 0))
        less = np.minimum(of_edge, np.maximum(lags[edge], 0))
        lags[edge] -= less
        lags[twin] -= less[has_twin]
        lags[self.waits] = NEVER
        return with_times(model, durations, lags)

    @cached_property
    def _places(self) -> tuple[Int64, ...]:
        """Tasks and how much of each, edges and how much of each, twins of edges, and which edges have one."""
        own = self.index >= 0
        twin = self.twin[~own]
        has_twin = np.flatnonzero(twin >= 0)
        return (
            self.index[own],
            self.inside_ns[own],
            -1 - self.index[~own],
            self.inside_ns[~own],
            twin[has_twin],
            has_twin,
        )


def host_time(
    model: Model, what: str, when: Callable[[Timeline], IntervalSet], *, waits: bool = False
) -> HostTime | None:
    """Take out of a model what *when* gives on the clock of each process's first timeline; None if that is nothing.

    What hosts do before the first step is kept, since it is no part of a step.

    Args:
        waits: whether calls at these times wait for nothing, either.
    """
    clocks, found, waiting = model.run.cross_rank.clocks, list[tuple[Int64, Int64, Int64]](), [EMPTY[0]]
    for process in model.processes:
        number = process.timelines[0][0]
        timeline = model.run.timelines[number]
        first = (timeline.host.step_ns if len(timeline.host.step_ns) else timeline.windows.bounds)[:1]
        start, end = subtract(when(timeline), (np.full_like(first, np.iinfo(np.int64).min), first))
        if len(start):
            times = clocks.align(number, start), clocks.align(number, end)
            pieces = host_pieces(model, process)
            inside = covered(times, pieces.end_ns) - covered(times, pieces.start_ns)
            own = np.flatnonzero(inside > 0)
            found.append((pieces.index[own], pieces.twin[own], inside[own]))
            waiting += [_waits_of(model, process, times)] if waits else []
    if not found:
        return None
    index, twin, inside_ns = (np.concatenate(column) for column in zip(*found, strict=True))
    return HostTime(what, index, twin, inside_ns, np.concatenate(waiting))


def _waits_of(model: Model, process: Process, when: IntervalSet) -> Int64:
    """Return the edges by which blocking calls at these times wait for the device."""
    graph, host, event = model.graph, process.host, process.blocking.event
    start, end = host.start_ns[event], host.end_ns[event]
    inside = covered(when, end) - covered(when, start) > _MOSTLY * (end - start)
    returns = np.zeros(len(graph), np.bool_)
    returns[process.host_tasks.finish[event[inside]]] = True
    return np.flatnonzero(graph.edge.of(EdgeKind.SYNCHRONIZE, EdgeKind.QUEUE) & returns[graph.edge.dst])
