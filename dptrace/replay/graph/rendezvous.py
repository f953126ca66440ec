"""Collectives as meetings of ranks: one transfer that starts once the last rank has arrived, and ends for all."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.matching.match import Matches
from dptrace.core.intervals import Int64
from dptrace.replay.graph.device_order import US
from dptrace.replay.graph.model import EdgeKind, Edges

__all__ = ["Transfers", "meet"]

_LATE_NS = 5 * US
"""A collective that takes this much longer than its transfer waited for a rank that was not recorded."""
_LEFT_EARLY_NS = 100 * US
"""A rank that leaves this long before the last arrives waits for no other: the root of a broadcast, a sender."""


class Transfers(msgspec.Struct, frozen=True):
    """The transfers of a run's collectives, one entry per collective in each column."""

    arrived_ns: Int64
    """Arrival of the last rank, on the shared clock."""
    duration_ns: Int64
    end_ns: Int64
    """Recorded end on the last rank to leave."""
    kind: NDArray[np.object_]
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

    def __len__(self) -> int:
        return len(self.duration_ns)

    def ends(self, tasks: int) -> Int64:
        """Return for each of the first *tasks* tasks the one at whose end it is over: its transfer, or itself."""
        over = np.arange(tasks)
        over[self.arrival] = self.task[self.instance]
        return over


def meet(
    edges: Edges, matches: Matches, tasks: Int64, start: Int64, end: Int64, first_task: int, ranks: int, world_size: int
) -> Transfers:
    """Build the transfers of the matched collectives and the edges to them.

    Args:
        tasks: task of each member, or -1 where it is not in the graph.
        start, end: recorded start and end of each member, on the shared clock.
        first_task: number of the first transfer's task.
        ranks: number of recorded ranks.
        world_size: number of ranks in the job.
    """
    kept = tasks >= 0
    instance = matches.instance[kept]
    start, end, member = start[kept], end[kept], tasks[kept]
    known, first = np.unique(instance, return_index=True)
    instance = np.searchsorted(known, instance)
    arrived = _reduce(np.maximum, start, first)
    # Only these wait for the others, and only these show how long the transfer takes.
    waits = matches.synchronizing[known][instance] | (end + _LEFT_EARLY_NS >= arrived[instance])
    length = np.where(waits, end - start, np.iinfo(np.int64).max)
    shortest, longest = _reduce(np.minimum, length, first), _reduce(np.maximum, end - start, first)
    absent = (matches.size[known] > np.bincount(instance, minlength=len(known))) | (
        ~matches.complete[known] & (ranks < world_size)
    )
    usual, sized = _usual_transfer(matches, known, np.minimum(shortest, longest))
    transfer = np.where(absent, np.where(sized, np.minimum(usual, longest), longest), np.minimum(shortest, longest))
    ended = _reduce(np.maximum, end, first)
    transfers = Transfers(
        arrived_ns=arrived,
        duration_ns=transfer,
        end_ns=ended,
        kind=matches.kind[known],
        bytes=matches.bytes[known],
        group=matches.group[known],
        absent=absent,
        sized=sized | ~absent,
        task=first_task + np.arange(len(known)),
        arrival=member[waits],
        instance=instance[waits],
    )
    edges.add(member[waits], transfers.task[instance[waits]], 0, EdgeKind.RENDEZVOUS)
    edges.add(member[~waits], transfers.task[instance[~waits]], 0, EdgeKind.RENDEZVOUS, from_end=False)
    return _with_peers(edges, transfers, longest)


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
    waited = transfers.absent & (late > _LATE_NS)
    follows = np.flatnonzero(waited & (previous >= 0))
    before = previous[follows]
    came = transfers.end_ns[follows] - transfers.duration_ns[follows] - transfers.end_ns[before]
    edges.add(transfers.task[before], transfers.task[follows], np.maximum(came, 0), EdgeKind.PEER)
    transfers.duration_ns[waited & (previous < 0)] += late[waited & (previous < 0)]
    return transfers
