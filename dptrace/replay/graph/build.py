"""Build the dependency graph of a run: every process, the collectives between them, and waits inferred from time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict, astuple, replace
from numpy.typing import NDArray

from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.core.intervals import Int64, median, members, repeated, union, unique
from dptrace.core.notes import ALL_STEPS
from dptrace.core.subprocess_pool import collection_paused
from dptrace.core.units import plural
from dptrace.errors import DptraceError
from dptrace.replay.graph.events import RANK_EVENTS, RankEvents
from dptrace.replay.graph.model import (
    INFERRED,
    NEVER,
    NO_PROCESS,
    Edge,
    EdgeKind,
    Edges,
    Graph,
    TaskKind,
    Tasks,
    edges_before,
    order_tasks,
)
from dptrace.replay.graph.process import Process, ProcessTasks, build_process
from dptrace.replay.graph.waits import US
from dptrace.replay.representatives import Representatives, arrives_with
from dptrace.run.run import Run, whole_run
from dptrace.timeline.model import Kind, Timeline

# Waits that only times suggest: the last resort for tasks that start later than all that is known allows.


_MIN_NS = 20 * US
"""Shortest gap without a recorded reason for which one is looked for."""
_BEFORE_NS = 15 * US
"""A wait ends this soon after what was waited for."""
_AFTER_NS = 2 * US
"""Longest lag of work after what it waits for."""


def residuals(graph: Graph) -> Int64:
    """Return how much later than its edges allow each task was recorded to start, in ns; 0 for one without edges.

    What is left over is unexplained; a negative value contradicts an edge.
    """
    late = np.zeros(len(graph), np.int64)
    waiting = np.flatnonzero(np.diff(graph.first))
    late[waiting] = _later(graph, waiting, graph.edge, graph.first[waiting])
    return late


def residuals_without_inferred(graph: Graph) -> tuple[Int64, Int64]:
    """Return the tasks with waits that only times suggest, and how much later each started than the others allow."""
    task = unique(graph.edge.dst[graph.edge.of(*INFERRED)])
    which, nth = repeated(np.diff(graph.first)[task])
    edge = graph.edge.take(graph.first[task[which]] + nth)
    edge = replace(edge, lag_ns=np.where(edge.of(*INFERRED), NEVER, edge.lag_ns))
    return task, _later(graph, task, edge, np.flatnonzero(nth == 0))


def _later(graph: Graph, task: Int64, edge: Edge, first: Int64) -> Int64:
    """Return how much later some tasks started than their edges allow, of which each has those from *first* on."""
    came = edge.came(graph.start_ns, graph.end_ns)
    return graph.start_ns[task] - np.maximum.reduceat(came, first) if len(task) else task


def add_inferred(edges: Edges, graph: Graph, processes: Sequence[Process]) -> None:
    """Add edges for tasks on devices that start 20 µs or more after all that is known allows.

    Where an interval of another stream ended just before, the task waited for it. Where a kernel of another stream ran
    throughout, it left no multiprocessor free.
    """
    late = residuals(graph)
    for process in processes:
        if process.on_cpu:
            continue
        device = process.device
        unexplained = late[process.interval_tasks]
        interval = np.flatnonzero(unexplained >= _MIN_NS)
        source = _ended_just_before(process, interval)
        found = source >= 0
        lag = np.minimum(_AFTER_NS, device.start_ns[interval] - device.end_ns[source])[found]
        tasks = process.interval_tasks
        edges.add(tasks[source[found]], tasks[interval[found]], lag, EdgeKind.TIMED)
        interval = interval[~found]
        kernel = graph.kind[tasks] == TaskKind.COMPUTE
        source = _ran_throughout(process, kernel, interval, unexplained[interval])
        found = source >= 0
        lag = (device.start_ns[interval] - device.end_ns[source])[found]
        edges.add(tasks[source[found]], tasks[interval[found]], lag, EdgeKind.BUSY)


def _ended_just_before(process: Process, interval: Int64) -> Int64:
    """Return for each interval the last to end just before it on another stream, launched before it; or -1."""
    device = process.device
    by_end = np.argsort(device.end_ns, kind="stable")
    ends = device.end_ns[by_end]
    low = np.searchsorted(ends, device.start_ns[interval] - _BEFORE_NS)
    count = np.searchsorted(ends, device.start_ns[interval], side="right") - low
    which, nth = repeated(count)
    other = by_end[low[which] + nth]
    own = interval[which]
    fits = (device.lane[other] != device.lane[own]) & (device.start_ns[other] < device.start_ns[own])
    fits &= (device.launched_by[own] < 0) | (device.launched_by[other] <= device.launched_by[own])
    found = np.full(len(interval), -1, np.int64)
    found[which[fits]] = other[fits]  # ends ascend: the last one stays
    return found


def _ran_throughout(process: Process, kernel: NDArray[np.bool_], interval: Int64, late: Int64) -> Int64:
    """Return for each interval the longest kernel of another stream that ran while it could have started; or -1."""
    device = process.device
    found, longest = np.full(len(interval), -1, np.int64), np.zeros(len(interval), np.int64)
    if not len(interval):
        return found
    since, start = device.start_ns[interval] - late + _MIN_NS, device.start_ns[interval]
    for lane in range(device.lanes):
        own = np.flatnonzero((device.lane == lane) & kernel)
        place = np.searchsorted(device.start_ns[own], start) - 1
        other = np.where(place >= 0, own[place] if len(own) else -1, -1)
        length = device.end_ns[other] - device.start_ns[other]
        fits = (other >= 0) & (device.lane[interval] != lane) & (device.start_ns[other] <= since)
        better = fits & (device.end_ns[other] > start) & (length > longest)
        found, longest = np.where(better, other, found), np.where(better, length, longest)
    return found


# Collectives as meetings of ranks: one transfer that starts once the last rank has arrived, and ends for all.

_LATE_NS, _LATE_ON_CPU_NS, _UNSTEADY, _SPREAD = 5 * US, 1_000 * US, 0.15, 0.9
"""A collective that takes this much longer than its transfer, by this share, and longer than this share of those with
all their ranks, waited for a rank that was not recorded."""
_BESIDE = 0.3
"""Where none with all their ranks shows how long a transfer takes: the share of what recorded ranks wait for each other
up to which the rest may be transfer."""
_LEFT_EARLY_NS = 100 * US
"""A rank that leaves this long before the last arrives waits for no other: the root of a broadcast, a sender."""


_UNEVEN_NS = 200 * US
"""Ranks that leave this far apart did not leave together: clocks differ by less."""


class Transfers(msgspec.Struct, frozen=True):
    """The transfers of a run's collectives, one entry per transfer in each column.

    A synchronizing collective on GPUs is one transfer; of others, each rank has its own, after a meeting that takes no
    time.
    """

    arrived_ns: Int64
    """Arrival of the last rank, on the shared clock."""
    duration_ns: Int64
    end_ns: Int64
    """Recorded end on the last rank to leave."""
    kind: NDArray[np.object_]
    dtype: NDArray[np.object_]
    """As the trace names it: ``"Float"``; empty where it does not."""
    bytes: Int64
    group: NDArray[np.int32]
    absent: NDArray[np.bool_]
    """Whether ranks of the group are not recorded."""
    sized: NDArray[np.bool_]
    """Whether its transfer is known: all ranks are recorded, or others of its size show it."""
    shown: NDArray[np.bool_]
    """Whether it does not depend on ranks that are missing: all are recorded, or were in others like it."""
    task: Int64
    """Number of each transfer's task."""
    arrival: Int64
    """Of each member that waits for the others: its task."""
    instance: Int64
    """Of each of these members: index of its transfer."""
    match: Int64
    """Of each transfer: index of its collective into the matches; -1 for one that is inserted."""

    def __len__(self) -> int:
        return len(self.duration_ns)

    def ends(self, tasks: int) -> Int64:
        """Return for each of the first *tasks* tasks the one at whose end it is over: its transfer, or itself."""
        over = np.arange(tasks)
        over[self.arrival] = self.task[self.instance]
        return over


class Members(msgspec.Struct, frozen=True):
    """The members of matched collectives, in their order; one entry per member in each column."""

    task: Int64
    """Its task, or -1 where it is not in the graph."""
    start_ns: Int64
    """Recorded start and end, on the shared clock."""
    end_ns: Int64
    arrives_with: Int64 | None = None
    """Place of the member whose task it has: itself, or one that is replayed for it; None if each has its own."""
    since_ns: Int64 | None = None
    """When its host began to wait for it, after all else where it did not; None on GPUs."""


def add_rendezvous(
    edges: Edges, matches: Matches, members: Members, first_task: int, *, partial: bool, on_cpu: bool
) -> Transfers:
    """Build the transfers of the matched collectives and the edges to them.

    Args:
        first_task: number of the first transfer's task.
        partial: whether ranks of the job were not recorded.
        on_cpu: whether gloo carries out the collectives.
    """
    kept = members.task >= 0
    instance = matches.instance[kept]
    start, end, member = (column[kept] for column in (members.start_ns, members.end_ns, members.task))
    own, later = _own_and_later(members)
    own, later = own[kept], later[kept]
    known, first = np.unique(instance, return_index=True)
    instance = np.searchsorted(known, instance)
    arrived = _reduce(np.maximum, start, first)
    # Only these wait for the others, and only these show how long the transfer takes.
    waits = matches.synchronizing[known][instance] | (end + _LEFT_EARLY_NS >= arrived[instance])
    if members.since_ns is not None:
        message = waits & (matches.kind[known] == "send_recv")[instance]
        since = members.since_ns[kept]
        over = _messages_over(first, matches.bytes[known], arrived, message, end, since)[instance]
        end = np.where(message & (since > over), np.minimum(end, over), end)
    length = np.where(waits, end - start, np.iinfo(np.int64).max)
    shortest, longest = _reduce(np.minimum, length, first), _reduce(np.maximum, end - start, first)
    absent = (matches.size[known] > np.bincount(instance, minlength=len(known))) | (~matches.complete[known] & partial)
    # The last of the recorded ranks to arrive waits for none of them.
    alone = np.where(matches.synchronizing[known], np.minimum(shortest, longest), longest)
    usual, spread, sized, shown = _usual_transfer(matches, known, np.minimum(shortest, longest), absent)
    # How long a message takes depends on when its peer is ready: one whose peer is unknown takes what it took.
    sized &= matches.synchronizing[known]
    transfer = np.where(absent, np.where(sized, np.minimum(usual, alone), alone), np.minimum(shortest, longest))
    transfers = Transfers(
        arrived_ns=arrived,
        duration_ns=transfer,
        end_ns=_reduce(np.maximum, end, first),
        kind=matches.kind[known],
        dtype=np.array([matches.collectives[i].dtype for i in known.tolist()], object),
        bytes=matches.bytes[known],
        group=matches.group[known],
        absent=absent,
        sized=sized | ~absent,
        shown=(sized & shown) | ~absent,
        task=first_task + np.arange(len(known)),
        arrival=member[waits & own],
        instance=instance[waits & own],
        match=known,
    )
    for one, from_end in ((waits & own, True), (~waits & own, False)):
        edges.add(member[one], transfers.task[instance[one]], later[one], EdgeKind.RENDEZVOUS, from_end)
    transfers = _with_peers(edges, transfers, alone, longest, spread, matches, on_cpu=on_cpu)
    # On a CPU, a thread leaves a collective only when it gets a core.
    # So it is where the ranks of an all-to-all on GPUs leave at different times.
    first_end = _reduce(np.minimum, np.where(waits, end, np.iinfo(np.int64).max), first)
    last_end = _reduce(np.maximum, np.where(waits, end, np.iinfo(np.int64).min), first)
    uneven = last_end - first_end > _UNEVEN_NS
    apart = ~absent & (on_cpu | uneven | ~matches.synchronizing[known])
    return _leaving_apart(edges, transfers, apart, end[waits & own])


def _messages_over(
    first: Int64, size: Int64, arrived: Int64, waits: NDArray[np.bool_], end_ns: Int64, since_ns: Int64
) -> Int64:
    """Return when the messages of gloo's are over: each is recorded until a host has waited for it, however late.

    ::

        sent, received   ├ on its way ┤▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│      ▒ nobody waits yet
        host             │ compute ─────────────────────┤│

    What a host was there for is over as it goes on. What hosts come to later takes as long as others of its size.

    Args:
        first, size, arrived: of each message: its first member, its bytes, and when both sides have requested it.
        waits, end_ns, since_ns: of each member: whether it is of a message, and when its host ended and began to wait.
    """
    never = np.iinfo(np.int64).max
    instance = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(end_ns))))
    ended = np.maximum(_reduce(np.minimum, np.where(waits, end_ns, never), first), arrived)
    there = waits & (since_ns <= arrived[instance])
    seen = _reduce(np.minimum, np.where(there, end_ns, never), first)
    usual = ended - arrived
    for one in unique(size).tolist():
        alike = size == one
        if (known := alike & (seen < never)).any():
            usual[alike] = int(np.median(np.maximum(seen - arrived, 0)[known]))
    came = _reduce(np.minimum, np.where(waits, since_ns, never), first) - arrived
    return np.where((seen == never) & (came >= usual), np.minimum(ended, arrived + usual), ended)


def _own_and_later(members: Members) -> tuple[NDArray[np.bool_], Int64]:
    """Return which members have tasks of their own, and how much later the last arrives of those each stands for."""
    later = np.zeros(len(members.task), np.int64)
    if members.arrives_with is None:
        return np.ones(len(later), np.bool_), later
    own, among = members.arrives_with == np.arange(len(later)), members.arrives_with >= 0
    others = np.flatnonzero(among & ~own)
    of = members.arrives_with[others]
    np.maximum.at(later, of, members.start_ns[others] - members.start_ns[of])
    return own, later


def _leaving_apart(edges: Edges, transfers: Transfers, apart: NDArray[np.bool_], end: Int64) -> Transfers:
    """Create a transfer for each rank where they leave at different times: of messages, broadcasts, on CPUs.

    ::

        arrivals ──► meeting, which takes no time ──► each rank's transfer

    Args:
        apart: which transfers are replaced.
        end: recorded end of each member that waits, on the shared clock.
    """
    own = np.flatnonzero(apart[transfers.instance])
    of = transfers.instance[own]
    task = transfers.task[:1].sum() + len(transfers) + np.arange(len(own))
    edges.add(transfers.task[of], task, 0, EdgeKind.RENDEZVOUS)
    instance = transfers.instance.copy()
    instance[own] = len(transfers) + np.arange(len(own))
    left = np.maximum(end[own], transfers.arrived_ns[of])
    alike = ("arrived_ns", "kind", "dtype", "bytes", "group", "absent", "sized", "shown", "match")
    return replace(
        transfers,
        **{name: np.append(column := getattr(transfers, name), column[of]) for name in alike},
        duration_ns=np.append(np.where(apart, 0, transfers.duration_ns), left - transfers.arrived_ns[of]),
        end_ns=np.append(np.where(apart, transfers.arrived_ns, transfers.end_ns), left),
        task=np.append(transfers.task, task),
        instance=instance,
    )


def _reduce(function: np.ufunc, values: Int64, first: Int64) -> Int64:
    return function.reduceat(values, first) if len(first) else np.empty(0, np.int64)


def _usual_transfer(
    matches: Matches, known: Int64, shortest: Int64, absent: NDArray[np.bool_]
) -> tuple[Int64, Int64, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return how long the transfers of collectives like each one take, and how much longer some of these take; where
    it is known, and where all ranks show it.

    That is the median of those with all their ranks, of the same kind and bytes, in groups of one purpose; without any,
    the shortest of the same group.
    """
    kinds = {kind: i for i, kind in enumerate(dict.fromkeys(matches.kind.tolist()))}
    purposes = {purpose: i for i, purpose in enumerate(dict.fromkeys((g.description, g.size) for g in matches.groups))}
    purpose = np.array([purposes[group.description, group.size] for group in matches.groups], np.int64)
    group = matches.group[known].astype(np.int64)
    kind = np.array([kinds[one] for one in matches.kind[known].tolist()], np.int64)
    size = matches.bytes[known]
    own = _alike(kind, group, size)
    usual = np.full(len(known), np.iinfo(np.int64).max)
    np.minimum.at(usual, own, shortest)
    usual = usual[own]
    like = _alike(kind, purpose[group] if len(group) else group, size)
    shown, spread = np.zeros(len(known), np.bool_), np.zeros(len(known), np.int64)
    for one in unique(like[absent]).tolist():
        alike = like == one
        if (whole := alike & ~absent).any():
            usual[alike & absent], shown[alike] = int(median(shortest[whole])), True
            spread[alike & absent] = int(np.quantile(shortest[whole], _SPREAD)) - usual[alike & absent]
    return usual, spread, size > 0, shown


def _alike(kind: Int64, group: Int64, size: Int64) -> Int64:
    """Return a number for each collective that is equal for those of one kind, group and size."""
    _, size = np.unique(size, return_inverse=True)
    key = (kind * (int(group.max(initial=0)) + 1) + group) * (len(size) + 1) + size
    same: Int64 = np.unique(key, return_inverse=True)[1]
    return same


_FEW_ABSENT = 4
"""Ranks of a group that were not recorded, at most, for each of which its own previous collective is looked for."""


def _previous(matches: Matches, transfers: Transfers, alone: Int64) -> Int64:
    """Return the transfer after whose end the last rank that was not recorded came to each one, or -1.

    ::

        groups 0 1, 1 3: rank 1 has no trace    rank 0  ░░░░░░░░░┤0 1│
                                                rank 1  ·········│   └─┤1 3│    it came to rank 3 from rank 0, for
                                                rank 3  ░░░░░░░░░░░░░░░│   │    which it had waited

    That is the last one of its groups that had ended; where many were not recorded, the last one of the same group.
    """
    here = {rank for rank, _ in matches.device_ids}
    absent = [sorted(set(group.ranks) - here) for group in matches.groups]
    few = [own if 0 < len(own) <= _FEW_ABSENT else [-1 - number] for number, own in enumerate((*absent, []))]
    # A rank whose file is cut lacks some collectives of a group, and has others.
    rows = np.flatnonzero(np.isin(transfers.group, transfers.group[transfers.absent]))
    count = np.array([len(few[group]) for group in transfers.group[rows].tolist()], np.int64)
    of = np.repeat(rows, count)
    key = np.array([rank for group in transfers.group[rows].tolist() for rank in few[group]], np.int64)
    # When the last of the absent ranks came, if others waited for it: as long before the end as the transfer takes.
    came = np.where(alone > transfers.duration_ns, transfers.end_ns - transfers.duration_ns, transfers.arrived_ns)
    previous = np.full(len(transfers), -1, np.int64)
    for one in np.unique(key).tolist():
        own = of[key == one]
        own = own[np.argsort(transfers.end_ns[own], kind="stable")]
        before = np.searchsorted(transfers.end_ns[own], came[own], side="right") - 1
        before -= (before >= 0) & (own[before] == own)
        found = np.where(before >= 0, own[before], -1)
        later = (found >= 0) & (
            transfers.end_ns[found] > np.where(previous[own] >= 0, transfers.end_ns[previous[own]], 0)
        )
        previous[own[later]] = found[later]
    return previous


def _with_peers(
    edges: Edges, transfers: Transfers, alone: Int64, longest: Int64, spread: Int64, matches: Matches, *, on_cpu: bool
) -> Transfers:
    """Let the ranks that were not recorded arrive as long after their previous collective as they did.

    Where they did not come last, they may have come as late as the last one that is recorded: such an arrival has an
    edge that holds in :meth:`Model.with_absent_as_late` alone.

    Args:
        alone, longest: how long the last of the recorded ranks to arrive was in each collective, and the first.
        spread: how much longer than its transfer each one may take without waiting.
    """
    spread = np.where(transfers.shown, spread, (_BESIDE * (longest - alone)).astype(np.int64))
    least_ns = np.maximum(spread, _LATE_ON_CPU_NS if on_cpu else _LATE_NS)
    previous = _previous(matches, transfers, alone)
    late = alone - transfers.duration_ns
    came = transfers.end_ns - transfers.duration_ns - transfers.end_ns[previous]
    waited = transfers.absent & (late > np.maximum(least_ns, _UNSTEADY * transfers.duration_ns))
    linked = transfers.absent & (previous >= 0) & (came >= 0)
    follows = linked & waited
    for one, lag in ((follows, came), (linked & ~waited & transfers.sized, np.full(len(came), NEVER))):
        edges.add(transfers.task[previous[one]], transfers.task[one], lag[one], EdgeKind.PEER)
    own = transfers.absent & ~follows
    return replace(transfers, duration_ns=np.where(own, alone, transfers.duration_ns))


_LARGEST_KEPT = 31 << 20
"""Bytes of a block that malloc keeps, at most: it counts none from 32 MiB on."""


class Model(msgspec.Struct, frozen=True):
    """A run as tasks: its graph, and where the run's intervals are in it."""

    run: Run
    """The whole run, with all ranks and steps."""
    graph: Graph
    processes: tuple[Process, ...]
    transfers: Transfers
    over: Int64
    """For each task, the one at whose end it is over: a collective ends with its transfer."""
    place: tuple[tuple[int, Int64], ...]
    """Of each timeline: the index of its process, and the task of each of its intervals, or -1."""
    of: Representatives | None = None
    """For which other ranks those of the model are replayed; None where it has all."""

    @property
    def lacks_ranks(self) -> bool:
        """Whether ranks of the job were not recorded."""
        return len(self.whole.ranks) < self.run.world_size

    @property
    def bounds_absent(self) -> bool:
        """Whether ranks that were not recorded may have come as late as others somewhere."""
        edge = self.graph.edge
        return bool((edge.of(EdgeKind.PEER) & (edge.lag_ns == NEVER)).any())

    @property
    def whole(self) -> Run:
        """The run with all ranks, also those that others stand for."""
        return self.run if self.of is None else self.of.whole

    @property
    def ranks(self) -> Int64:
        """For how many ranks each process is replayed, with its own."""
        return np.ones(len(self.processes), np.int64) if self.of is None else self.of.count

    def transferring_ns(self, chosen: NDArray[np.bool_]) -> int:
        """Return how long the mean process was in some transfers; those at once, as of sends and receives, count once.

        Args:
            chosen: a mask over the transfers.
        """
        transfers, spent = self.transfers, 0
        end_ns = transfers.arrived_ns + transfers.duration_ns
        member = np.flatnonzero(chosen[transfers.instance])
        for rows in members(self.graph.process[transfers.arrival[member]], len(self.processes)):
            own = transfers.instance[member[rows]]
            start, end = union(transfers.arrived_ns[own], end_ns[own])
            spent += int((end - start).sum())
        return spent // max(1, len(self.processes))

    def without_inferred(self) -> Model:
        """Return the model without the waits that only times suggest."""
        # Their targets have other edges, too: these alone decide then. The graph keeps its order.
        edge = self.graph.edge
        lags = np.where(edge.of(*INFERRED), NEVER, edge.lag_ns)
        return replace(self, graph=replace(self.graph, edge=replace(edge, lag_ns=lags)))

    def with_absent_as_late(self) -> Model:
        """Return the model in which ranks that were not recorded come as late as the last recorded one, or later."""
        graph, edge = self.graph, self.graph.edge
        came = graph.start_ns[edge.dst] - graph.end_ns[edge.src]
        lags = np.where(edge.of(EdgeKind.PEER) & (edge.lag_ns == NEVER), came, edge.lag_ns)
        return replace(self, graph=replace(graph, edge=replace(edge, lag_ns=lags)))

    @property
    def has_absent_late(self) -> bool:
        """Whether ranks that were not recorded seem to have come last somewhere."""
        edge = self.graph.edge
        return bool((edge.of(EdgeKind.PEER) & (edge.lag_ns > NEVER)).any())

    def with_absent_early(self) -> Model:
        """Return the model in which ranks that were not recorded never come last: what seems waiting is transfer."""
        graph, edge, transfers = self.graph, self.graph.edge, self.transfers
        duration_ns = graph.duration_ns.copy()
        own = transfers.task[transfers.absent]
        took = (transfers.end_ns - transfers.arrived_ns)[transfers.absent]
        duration_ns[own] = np.maximum(duration_ns[own], took)
        lags = np.where(edge.of(EdgeKind.PEER), NEVER, edge.lag_ns)
        return replace(self, graph=replace(graph, duration_ns=duration_ns, edge=replace(edge, lag_ns=lags)))

    def with_edges(self, edge: Edge) -> Model:
        """Return the model with other edges between the same tasks."""
        return replace(self, graph=replace(self.graph, **_ordered(edge, self.graph.start_ns)))

    @property
    def first_timelines(self) -> list[tuple[Process, int]]:
        """Each process with the number of the first timeline of its file."""
        first: dict[int, int] = {}
        for number, (index, _) in enumerate(self.place):
            first.setdefault(index, number)
        return [(self.processes[index], number) for index, number in first.items()]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the graph was inferred from, a sentence each."""
        return tuple(_notes(self))


@collection_paused()
def build_model(run: Run, of: Representatives | None = None) -> Model:
    """Build the graph of a whole run, from a second reading of its files.

    Args:
        of: the ranks that are replayed for all; None for all ranks.

    Raises:
        DptraceError: a file can't be read again, or the run was opened with ``figures_only``.
    """
    run = whole_run(run) if of is None else of.run
    if run.figures_only:
        raise DptraceError(f"{run.path}: opened with figures_only, which drops the intervals. Leave it out.")
    # Steps that a rank has not recorded whole are not among those that answers are about.
    run.need("What a change would gain is", "exposed_comm_ns", CAUSES[0], despite=(ALL_STEPS,))
    # glibc's malloc gives large blocks back to the system, which clears them again for each simulation, unless a larger
    # one was freed before.
    np.empty(_LARGEST_KEPT, np.uint8)
    clocks = run.cross_rank.clocks
    processes, built = list[Process](), list[ProcessTasks]()
    first = 0
    for timelines in _by_file(run.timelines):
        events = _events(run, timelines[0][1])
        process, tasks_of = build_process(events, timelines, partial(clocks.align, timelines[0][0]), first)
        processes.append(process)
        built.append(tasks_of)
        first += len(process)
    places = {number: (index, tasks) for index, process in enumerate(processes) for number, tasks in process.timelines}
    place = tuple(places[number] for number in range(len(run.timelines)))
    edges = Edges()
    transfers = _add_transfers(edges, run, of, place, first, _waited_since(built) if run.on_cpu else None)
    tasks = _tasks(processes, built, transfers)
    known = Edge.concat([*(one.edge for one in built), _within_windows(edges.table(), transfers, processes)])
    del built
    edge = _over(known, transfers, len(tasks.start_ns))
    del known
    graph = Graph(**asdict(tasks), **_ordered(edge, tasks.start_ns))
    inferred = Edges()
    add_inferred(inferred, graph, processes)
    more = _over(inferred.table(), transfers, len(graph))
    if len(more):
        graph = replace(graph, **_inserted(graph, more))
    return Model(run, graph, tuple(processes), transfers, transfers.ends(len(graph)), place, of)


def _within_windows(edge: Edge, transfers: Transfers, processes: Sequence[Process]) -> Edge:
    """Return the edges of collectives without those from one window to the next."""
    most = max((process.later_ns for process in processes), key=len)
    if not len(most):
        return edge
    begin = [min(int(p.later_ns[n]) for p in processes if len(p.later_ns) == len(most)) for n in range(len(most))]
    first = int(transfers.task[:1].sum())
    window = np.searchsorted(np.array(begin), transfers.arrived_ns, side="right")
    between = edge.of(EdgeKind.PEER)
    between[between] = window[edge.src[between] - first] != window[edge.dst[between] - first]
    return edge.take(~between)


def _by_file(timelines: Sequence[Timeline]) -> list[list[tuple[int, Timeline]]]:
    """Group the timelines of a run, with their numbers, by file: each is of one process."""
    files: dict[str, list[tuple[int, Timeline]]] = {}
    for number, timeline in enumerate(timelines):
        files.setdefault(timeline.path or f"timeline {number}", []).append((number, timeline))
    return list(files.values())


def _events(run: Run, timeline: Timeline) -> RankEvents:
    events = run.read_again(timeline, RANK_EVENTS)
    if events is None:
        raise DptraceError(
            f"{timeline.path or run.path}: can't be read a second time, which a replay needs. If it came through a "
            "pipe, save it as a file; if it was moved or changed since, open the run again."
        )
    return events


def _waited_since(built: Sequence[ProcessTasks]) -> Int64:
    """Return for each task when a host began to wait for it, after all else for one that none waited for; and for none.

    A wait has two edges: from what the host did before, and from what it waited for.
    """
    start = np.concatenate([tasks.start_ns + tasks.duration_ns for tasks in built])
    edge = Edge.concat([tasks.edge for tasks in built])
    began = np.zeros(len(start), np.int64)
    before = np.flatnonzero(edge.of(EdgeKind.HOST))
    began[edge.dst[before]] = start[edge.src[before]]
    since = np.full(len(start) + 1, np.iinfo(np.int64).max)
    waits = np.flatnonzero(edge.of(EdgeKind.HIDDEN))
    np.minimum.at(since, edge.src[waits], began[edge.dst[waits]])
    return since


def _add_transfers(
    edges: Edges,
    run: Run,
    of: Representatives | None,
    place: Sequence[tuple[int, Int64]],
    first_task: int,
    since_ns: Int64 | None,
) -> Transfers:
    """Let the ranks meet in their matched collectives.

    Args:
        since_ns: of each task, when a host began to wait for it; the last entry is for none.
    """
    whole = run if of is None else of.whole
    numbers = range(len(run.timelines)) if of is None else of.numbers.tolist()
    matches, clocks = whole.cross_rank.matches, whole.cross_rank.clocks
    tasks = np.full(len(matches.device), -1, np.int64)
    start, end = matches.start_ns.copy(), matches.end_ns.copy()
    for number, own in enumerate(matches.of_device):
        start[own] = clocks.align(number, matches.start_ns[own])
        end[own] = clocks.align(number, matches.end_ns[own])
    for timeline, number, (_, placed) in zip(run.timelines, numbers, place, strict=True):
        own = matches.of_device[number]
        tasks[own] = placed[timeline.kind == Kind.COMMUNICATION][matches.index[own]]
    partial = len(whole.ranks) < whole.world_size
    if of is None:
        of_run = Members(tasks, start, end, None, None if since_ns is None else since_ns[tasks])
        return add_rendezvous(edges, matches, of_run, first_task, partial=partial, on_cpu=run.on_cpu)
    with_whom, number_of = arrives_with(of, start)
    of_run = Members(np.where(with_whom >= 0, tasks[with_whom], -1), start, end, with_whom)
    transfers = add_rendezvous(edges, matches, of_run, first_task, partial=partial, on_cpu=run.on_cpu)
    return replace(transfers, match=number_of[transfers.match])


def _tasks(processes: Sequence[Process], built: Sequence[ProcessTasks], transfers: Transfers) -> Tasks:
    """Put the tasks of the processes and the transfers one after the other."""
    numbers: dict[str, int] = {}
    name, operator = [], []
    for process, tasks in zip(processes, built, strict=True):
        own = np.array([numbers.setdefault(one, len(numbers)) for one in process.names] + [-1], np.int32)
        name.append(own[tasks.name])
        operator.append(own[tasks.operator])
    kinds = np.array([numbers.setdefault(one, len(numbers)) for one in transfers.kind.tolist()], np.int32)
    count = len(transfers)
    lengths = [len(process) for process in processes]
    start = np.concatenate([*(tasks.start_ns for tasks in built), transfers.arrived_ns])
    duration = np.concatenate([*(tasks.duration_ns for tasks in built), transfers.duration_ns])
    kind = np.concatenate([*(tasks.kind for tasks in built), np.full(count, TaskKind.TRANSFER)]).astype(np.uint8)
    end = start + duration
    end[len(end) - count :] = transfers.end_ns
    duration[transfers.arrival] = 0
    end[transfers.arrival] = start[transfers.arrival]
    kind[transfers.arrival] = TaskKind.ARRIVAL
    owner = np.repeat(np.append(np.arange(len(processes)), NO_PROCESS), [*lengths, count]).astype(np.int32)
    return Tasks(
        start_ns=start,
        duration_ns=duration,
        end_ns=end,
        kind=kind,
        process=owner,
        name=np.concatenate([*name, kinds]),
        operator=np.concatenate([*operator, np.full(count, -1, np.int32)]),
        names=tuple(numbers),
    )


def _over(edge: Edge, transfers: Transfers, tasks: int) -> Edge:
    """Let what waits for the end of a collective wait for its transfer, except for the meeting that it is part of."""
    over, src = transfers.ends(tasks), edge.src.copy()
    moved = np.flatnonzero(edge.from_end & (over[src] != src))
    moved = moved[edge.kind[moved] != EdgeKind.RENDEZVOUS]
    src[moved] = over[src[moved]]
    kept = src != edge.dst
    kept[moved] &= over[edge.dst[moved]] != src[moved]
    return replace(edge, src=src).take(kept)


def _ordered(edge: Edge, start: Int64, contradicted: int = 0) -> dict[str, Any]:
    """Return the fields of a graph that its edges determine."""
    ordered, first, order = order_tasks(edge, start)
    left_out = contradicted + len(edge) - len(ordered)
    return {"edge": ordered, "first": first, "order": order, "contradicted": left_out, "prepared": []}


def _inserted(graph: Graph, more: Edge) -> dict[str, Any]:
    """Return the fields of a graph that more edges change; its order stays where it has them, too."""
    place = np.empty(len(graph), np.int64)
    place[graph.order] = np.arange(len(graph))
    if (place[more.src] >= place[more.dst]).any():
        return _ordered(Edge.concat([graph.edge, more]), graph.start_ns, graph.contradicted)
    more = more.take(np.argsort(more.dst, kind="stable"))
    at = graph.first[more.dst + 1]
    edge = Edge(*(np.insert(old, at, new) for old, new in zip(astuple(graph.edge), astuple(more), strict=True)))
    return {"edge": edge, "first": graph.first + edges_before(more, len(graph)), "prepared": []}


def _notes(model: Model) -> Iterator[str]:
    """Describe what was inferred, and from what."""
    waits = [process.waits for process in model.processes]
    joins, by_time = sum(one.joins for one in waits), sum(one.joins_by_time for one in waits)
    hidden = sum(process.hidden_waits for process in model.processes)
    timed = int(model.graph.edge.of(*INFERRED).sum())
    if joins:
        yield (
            f"Inferred: which collective a stream waits for, in {plural(joins, 'case')}, {by_time:,} of them by time."
        )
    if hidden:
        yield f"Inferred: waits of the host for the device that are not recorded, in {plural(hidden, 'pause')}."
    if timed:
        yield f"Inferred from time alone: {plural(timed, 'wait')} between streams; ranges are with and without."
    if contradicted := model.graph.contradicted:
        left_out = plural(contradicted, "dependency", "dependencies")
        yield f"Left out: {left_out} that the recorded order contradicts."
