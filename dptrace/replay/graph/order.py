"""Sort a graph's tasks so that each comes after those it waits for, and leave out edges that make that impossible."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.replay.graph.model import INFERRED, Edge, EdgeKind

__all__ = ["order_tasks", "sorted_by_destination"]

_LEAST_CERTAIN = (*INFERRED, EdgeKind.PEER, EdgeKind.HIDDEN, EdgeKind.JOIN, EdgeKind.PRODUCE, EdgeKind.QUEUE)
"""Kinds whose edges are left out of a cycle before others."""


def sorted_by_destination(edge: Edge, count: int) -> tuple[Edge, Int64]:
    """Sort edges by destination; return them and the index of the first edge of each of *count* tasks, and the end."""
    edge = edge.filter(np.argsort(edge.dst, kind="stable"))
    return edge, np.searchsorted(edge.dst, np.arange(count + 1))


def order_tasks(edge: Edge, start: Int64) -> tuple[Edge, Int64, Int64]:
    """Return the edges without cycles, sorted by destination, the first edge of each task, and the tasks in order.

    An edge of a cycle is left out if it points back in recorded time: first those of uncertain kinds, then any.

    Args:
        start: recorded start of each task, in ns.
    """
    count = len(start)
    edge, first = sorted_by_destination(edge, count)
    order, stuck = _kahn(edge, first, count)
    # Position in time, ties in the order of the tasks: edges that all point forward close no cycle.
    place = np.empty(count, np.int64)
    place[np.argsort(start, kind="stable")] = np.arange(count)
    for kinds in (_LEAST_CERTAIN, tuple(EdgeKind)):
        if not stuck.any():
            break
        back = stuck[edge.src] & stuck[edge.dst] & (place[edge.src] >= place[edge.dst]) & edge.of(*kinds)
        edge, first = sorted_by_destination(edge.filter(~back), count)
        order, stuck = _kahn(edge, first, count)
    return edge, first, order


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
