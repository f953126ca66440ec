"""Collectives as meetings of ranks: one transfer that starts once the last rank has arrived, and ends for all."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.matching.match import Matches
from dptrace.core.intervals import Int64
from dptrace.replay.graph.model import EdgeKind, Edges
from dptrace.replay.graph.per_rank.device_order import US

__all__ = ["Members", "Transfers", "add_rendezvous"]

_LATE_NS = 5 * US
"""A collective that takes this much longer than its transfer waited for a rank that was not recorded."""
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
    known, first = np.unique(instance, return_index=True)
    instance = np.searchsorted(known, instance)
    arrived = _reduce(np.maximum, start, first)
    # Only these wait for the others, and only these show how long the transfer takes.
    waits = matches.synchronizing[known][instance] | (end + _LEFT_EARLY_NS >= arrived[instance])
    length = np.where(waits, end - start, np.iinfo(np.int64).max)
    shortest, longest = _reduce(np.minimum, length, first), _reduce(np.maximum, end - start, first)
    absent = (matches.size[known] > np.bincount(instance, minlength=len(known))) | (~matches.complete[known] & partial)
    usual, sized = _usual_transfer(matches, known, np.minimum(shortest, longest))
    # How long a message takes depends on when its peer is ready: one whose peer is unknown takes what it took.
    sized &= matches.synchronizing[known]
    transfer = np.where(absent, np.where(sized, np.minimum(usual, longest), longest), np.minimum(shortest, longest))
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
        task=first_task + np.arange(len(known)),
        arrival=member[waits],
        instance=instance[waits],
        match=known,
    )
    edges.add(member[waits], transfers.task[instance[waits]], 0, EdgeKind.RENDEZVOUS)
    edges.add(member[~waits], transfers.task[instance[~waits]], 0, EdgeKind.RENDEZVOUS, from_end=False)
    transfers = _with_peers(edges, transfers, longest)
    # On a CPU, a thread leaves a collective only when it gets a core.
    # So it is where the ranks of an all-to-all on GPUs leave at different times.
    first_end = _reduce(np.minimum, np.where(waits, end, np.iinfo(np.int64).max), first)
    last_end = _reduce(np.maximum, np.where(waits, end, np.iinfo(np.int64).min), first)
    uneven = last_end - first_end > _UNEVEN_NS
    apart = ~absent & (on_cpu | uneven | ~matches.synchronizing[known])
    return _leaving_apart(edges, transfers, apart, end[waits])


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
    return Transfers(
        arrived_ns=np.append(transfers.arrived_ns, transfers.arrived_ns[of]),
        duration_ns=np.append(np.where(apart, 0, transfers.duration_ns), left - transfers.arrived_ns[of]),
        end_ns=np.append(np.where(apart, transfers.arrived_ns, transfers.end_ns), left),
        kind=np.append(transfers.kind, transfers.kind[of]),
        dtype=np.append(transfers.dtype, transfers.dtype[of]),
        bytes=np.append(transfers.bytes, transfers.bytes[of]),
        group=np.append(transfers.group, transfers.group[of]),
        absent=np.append(transfers.absent, transfers.absent[of]),
        sized=np.append(transfers.sized, transfers.sized[of]),
        task=np.append(transfers.task, task),
        arrival=transfers.arrival,
        instance=instance,
        match=np.append(transfers.match, transfers.match[of]),
    )


def _reduce(function: np.ufunc, values: Int64, first: Int64) -> Int64:
    result: Int64 = function.reduceat(values, first) if len(first) else np.empty(0, np.int64)
    return result


def _usual_transfer(matches: Matches, known: Int64, shortest: Int64) -> tuple[Int64, NDArray[np.bool_]]:
    """Return the shortest duration among the collectives of each one's kind, group and size, and where it is known."""
    kinds = {kind: i for i, kind in enumerate(dict.fromkeys(matches.kind.tolist()))}
    kind = np.array([kinds[one] for one in matches.kind[known].tolist()], np.int64)
    _, size = np.unique(matches.bytes[known], return_inverse=True)
    key = (kind * (int(matches.group.max(initial=0)) + 1) + matches.group[known]) * (len(known) + 1) + size
    _, same = np.unique(key, return_inverse=True)
    usual = np.full(len(known), np.iinfo(np.int64).max)
    np.minimum.at(usual, same, shortest)
    return usual[same], matches.bytes[known] > 0


def _with_peers(edges: Edges, transfers: Transfers, longest: Int64) -> Transfers:
    """Let the ranks that were not recorded arrive as long after the group's previous collective as they did."""
    order = np.lexsort((transfers.arrived_ns, transfers.group))
    previous = np.full(len(transfers), -1, np.int64)
    same = transfers.group[order[1:]] == transfers.group[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    late = longest - transfers.duration_ns
    came = transfers.end_ns - transfers.duration_ns - transfers.end_ns[previous]
    waited = transfers.absent & (late > _LATE_NS)
    follows = waited & (previous >= 0) & (came >= 0)
    before, after = previous[follows], np.flatnonzero(follows)
    edges.add(transfers.task[before], transfers.task[after], came[follows], EdgeKind.PEER)
    return replace(transfers, duration_ns=transfers.duration_ns + np.where(waited & ~follows, late, 0))
