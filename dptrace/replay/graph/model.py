"""The dependency graph in arrays: tasks with a duration, and edges that a task's start waits for.

::

    start[i] = max over its edges of (from_end ? end[src] : start[src]) + lag        end = start + duration

A task without edges keeps its recorded start. A what-if changes durations and lags; tasks, edges and order stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dptrace.core.columns import Columns
from dptrace.core.intervals import Int64

NEVER = -(1 << 60)
"""Lag of an edge that does not hold: its source has always happened."""
NO_PROCESS = -1
"""Process of a transfer, which belongs to all its ranks."""


class TaskKind(IntEnum):
    """What a task is."""

    CALL = 0
    """A call on the host."""
    RETURN = 1
    """The moment at which a blocking call returns."""
    MARK = 2
    """The start of a step on the host, or the end of the last."""
    COMPUTE = 3
    MEMORY = 4
    COMMUNICATION = 5
    """A collective that waits for no other rank."""
    ARRIVAL = 6
    """The moment at which a rank arrives at a collective."""
    TRANSFER = 7
    """What a collective takes once its last rank has arrived."""


class EdgeKind(IntEnum):
    """Why a task waits for another."""

    HOST = 0
    """A thread runs one call after the other; the lag is the pause between them."""
    THREAD = 1
    """A thread goes on once another has finished (autograd's hand-over)."""
    LAUNCH = 2
    STREAM = 3
    PRODUCE = 4
    """A collective waits for what computes its input."""
    JOIN = 5
    """A stream waits for a collective or another stream."""
    SYNCHRONIZE = 6
    """The host waits for the device."""
    HIDDEN = 7
    """The host waited for the device in a call that is not recorded."""
    QUEUE = 8
    """The host waits for room in the queue of launches."""
    RENDEZVOUS = 9
    PEER = 10
    """The arrival of ranks that were not recorded, as long after the previous collective as it was."""
    TIMED = 11
    """A wait that is not recorded, inferred from the times of start and end."""
    BUSY = 12
    """A kernel that found no free multiprocessor, inferred from times."""


INFERRED = (EdgeKind.TIMED, EdgeKind.BUSY)
"""The kinds that only times suggest: they are confirmed by the same times that a replay is compared with."""


class Edges:
    """Edges as they are collected: arrays of sources and destinations with one lag, or one each."""

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[Any], ...]] = []

    def add(self, src: Int64, dst: Int64, lag: ArrayLike, kind: EdgeKind, from_end: ArrayLike = True) -> None:
        """Add an edge from each of *src* to the entry of *dst* at the same place.

        Args:
            lag: ns after the source's end, or its start; may be negative where clocks differ.
            from_end: whether the destination waits for the source's end.
        """
        count = len(src)
        self._parts.append(
            (
                np.asarray(src, np.int64),
                np.asarray(dst, np.int64),
                np.broadcast_to(np.asarray(lag, np.int64), count),
                np.broadcast_to(np.asarray(from_end, np.bool_), count),
                np.full(count, kind, np.uint8),
            )
        )

    def table(self) -> Edge:
        """Return all edges, in the order in which they were added."""
        kinds = (np.int64, np.int64, np.int64, np.bool_, np.uint8)
        columns: list[NDArray[Any]] = [
            np.concatenate([part[i] for part in self._parts] or [np.empty(0, kind)]).astype(kind, copy=False)
            for i, kind in enumerate(kinds)
        ]
        return Edge(*columns)


class Edge(Columns, frozen=True):
    """Edges, one entry per edge in each column."""

    src: Int64
    dst: Int64
    lag_ns: Int64
    from_end: NDArray[np.bool_]
    kind: NDArray[np.uint8]
    """:class:`EdgeKind` values."""

    def of(self, *kinds: EdgeKind) -> NDArray[np.bool_]:
        """Return a mask of the edges of these kinds."""
        return is_one_of(self.kind, kinds)

    def came(self, start_ns: Int64, end_ns: Int64) -> Int64:
        """Return when each edge lets its destination start, from when tasks start and end."""
        came = end_ns[self.src]
        early = np.flatnonzero(~self.from_end)
        came[early] = start_ns[self.src[early]]
        came += self.lag_ns
        return came


class Tasks(msgspec.Struct, frozen=True):
    """Tasks, one entry per task in each column."""

    start_ns: Int64
    """Recorded start, on the clock that all ranks share."""
    duration_ns: Int64
    end_ns: Int64
    """Recorded end; of a transfer, the last of its ranks'."""
    kind: NDArray[np.uint8]
    """:class:`TaskKind` values."""
    process: NDArray[np.int32]
    """Index of the process whose file has the task, or NO_PROCESS."""
    name: NDArray[np.int32]
    """Index into ``names``."""
    operator: NDArray[np.int32]
    """Name of the outermost operator that ran or launched it, or -1."""
    names: tuple[str, ...]


class Graph(Tasks, frozen=True):
    """Tasks, and the edges between them, sorted by destination."""

    edge: Edge
    first: Int64
    """Index of each task's first edge, followed by the number of edges."""
    order: Int64
    """The tasks in an order in which each comes after those it waits for."""
    contradicted: int = 0
    """Edges left out because they would have closed a cycle."""
    prepared: list[Any] = msgspec.field(default_factory=list)
    """What a simulation prepared of the edges; graphs that differ only in durations and lags share it."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def of(self, *kinds: TaskKind) -> NDArray[np.bool_]:
        """Return a mask of the tasks of these kinds."""
        return is_one_of(self.kind, kinds)


def is_one_of(column: NDArray[np.uint8], kinds: Iterable[int]) -> NDArray[np.bool_]:
    """Return a mask of the entries of these kinds."""
    mask = np.zeros(256, np.bool_)
    mask[list(kinds)] = True
    return mask[column]


# Sort a graph's tasks so that each comes after those it waits for, and leave out edges that make that impossible.

_UNCERTAIN_FIRST = (*INFERRED, EdgeKind.PEER, EdgeKind.HIDDEN, EdgeKind.JOIN, EdgeKind.PRODUCE, EdgeKind.QUEUE)
"""Kinds whose edges are left out of a cycle before others."""


def sorted_by_destination(edge: Edge, count: int) -> tuple[Edge, Int64]:
    """Sort edges by destination; return them and the index of the first edge of each of *count* tasks, and the end."""
    edge = edge.take(np.argsort(edge.dst, kind="stable"))
    return edge, edges_before(edge, count)


def edges_before(edge: Edge, count: int) -> Int64:
    """Return how many edges lead to the tasks before each of *count*, and to all."""
    return np.append(0, np.cumsum(np.bincount(edge.dst, minlength=count)))


def order_tasks(edge: Edge, start: Int64) -> tuple[Edge, Int64, Int64]:
    """Return the edges without cycles, sorted by destination, the first edge of each task, and the tasks in order.

    An edge of a cycle is left out if it points back in recorded time: first those of uncertain kinds, then any.

    Args:
        start: recorded start of each task, in ns.
    """
    count = len(start)
    edge, first = sorted_by_destination(edge, count)
    if (order := _by_time(edge, start)) is not None:
        return edge, first, order
    order, stuck = _kahn(edge, first, count)
    # Position in time, ties in the order of the tasks: edges that all point forward close no cycle.
    place = np.empty(count, np.int64)
    place[np.argsort(start, kind="stable")] = np.arange(count)
    for kinds in (_UNCERTAIN_FIRST, tuple(EdgeKind)):
        if not stuck.any():
            break
        back = stuck[edge.src] & stuck[edge.dst] & (place[edge.src] >= place[edge.dst]) & edge.of(*kinds)
        edge, first = sorted_by_destination(edge.take(~back), count)
        order, stuck = _kahn(edge, first, count)
    return edge, first, order


_MAX_ROUNDS = 50
"""Rounds in which tasks are moved after those that they wait for: recorded times need one to three."""


def _by_time(edge: Edge, start: Int64) -> Int64 | None:
    """Sort tasks by recorded start, those that start before what they wait for after it; None where that has no end."""
    at = start.copy()
    for _ in range(_MAX_ROUNDS):
        back = np.flatnonzero(at[edge.dst] <= at[edge.src])
        if not len(back):
            return np.argsort(at, kind="stable")
        np.maximum.at(at, edge.dst[back], at[edge.src[back]] + 1)
    return None


def _kahn(edge: Edge, first: Int64, count: int) -> tuple[Int64, NDArray[np.bool_]]:
    """Sort topologically; return the order and which tasks are in a cycle, or after one."""
    by_source = np.argsort(edge.src, kind="stable")
    after = edge.dst[by_source].tolist()
    bounds = np.searchsorted(edge.src[by_source], np.arange(count + 1)).tolist()
    waiting = np.diff(first).tolist()
    order = np.flatnonzero(np.diff(first) == 0).tolist()
    append = order.append
    for task in order:  # which grows while it is read
        for other in after[bounds[task] : bounds[task + 1]]:
            waiting[other] -= 1
            if not waiting[other]:
                append(other)
    stuck = np.ones(count, np.bool_)
    stuck[order] = False
    return np.array(order, np.int64), stuck
