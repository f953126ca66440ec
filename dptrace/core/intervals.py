"""Arithmetic on sets of half-open time intervals, in int64 nanoseconds, without a loop over events.

A set is a pair of arrays ``(starts, ends)``: sorted, disjoint, without empty intervals. :func:`union` builds one from
any intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["EMPTY", "Int64", "IntervalSet", "covered", "intersect", "subtract", "union", "union_all"]

Int64: TypeAlias = NDArray[np.int64]
IntervalSet: TypeAlias = tuple[Int64, Int64]

EMPTY: IntervalSet = (np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: Int64, ends: Int64) -> IntervalSet:
    """Merge intervals in any order, which may overlap, touch or be empty, into a set."""
    kept = ends > starts
    if not kept.any():
        return EMPTY
    starts, ends = starts[kept], ends[kept]
    order = starts.argsort(kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    edges = np.ones(len(starts) + 1, np.bool_)
    np.greater(starts[1:], reach[:-1], out=edges[1:-1])
    return starts[edges[:-1]], reach[edges[1:]]


def union_all(sets: Sequence[IntervalSet]) -> IntervalSet:
    """Return the union of one or more sets of intervals."""
    return union(np.concatenate([s for s, _ in sets]), np.concatenate([e for _, e in sets]))


def covered(intervals: IntervalSet, times: NDArray[Any]) -> NDArray[Any]:
    """Compute for each time how many nanoseconds of the set are before it.

    The part of the set inside ``[a, b)`` is ``covered(s, b) - covered(s, a)``: a prefix sum and a binary search
    replace clipping, so that many windows cost a sort.
    """
    starts, ends = intervals
    if not len(starts):
        return np.zeros(len(times), np.int64)
    before = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(ends - starts, out=before[1:])
    index = starts.searchsorted(times, side="right")
    overshoot = np.maximum(ends[index - 1] - times, 0)
    overshoot[index == 0] = 0
    inside: NDArray[Any] = before[index] - overshoot
    return inside


def _both(a: IntervalSet, b: IntervalSet, want: int) -> IntervalSet:
    """Sweep over the edges of two sets; keep where *a* is on and *b* is on (``want=2``) or off (``want=1``)."""
    edges = np.concatenate((a[0], a[1], b[0], b[1]))
    weight = np.repeat(np.array([1, -1, 2, -2], np.int8), [len(a[0]), len(a[1]), len(b[0]), len(b[1])])
    order = np.argsort(edges, kind="stable")
    edges, state = edges[order], np.cumsum(weight[order])
    keep = (state[:-1] == (3 if want == 2 else 1)) & (edges[1:] > edges[:-1])
    return union(edges[:-1][keep], edges[1:][keep])


def intersect(a: IntervalSet, b: IntervalSet) -> IntervalSet:
    """Return the intersection of two sets."""
    if not len(a[0]) or not len(b[0]):
        return EMPTY
    return _both(a, b, 2)


def subtract(a: IntervalSet, b: IntervalSet) -> IntervalSet:
    """Return the part of *a* outside *b*."""
    if not len(a[0]) or not len(b[0]):
        return a
    return _both(a, b, 1)
