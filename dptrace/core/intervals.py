"""Arithmetic on sets of half-open time intervals, in int64 nanoseconds, without a loop over events.

A set is a pair of arrays ``(starts, ends)``: sorted, disjoint, without empty intervals. :func:`union` builds one from
any intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    """Return the union of sets of intervals."""
    some = [one for one in sets if len(one[0])]
    if len(some) < 2:
        return some[0] if some else EMPTY
    return union(np.concatenate([s for s, _ in some]), np.concatenate([e for _, e in some]))


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


def cut_at(starts: Int64, ends: Int64, at: IntervalSet) -> tuple[Int64, Int64, Int64]:
    """Cut intervals where those of a set begin and end; return the index, the start and the end of each piece."""
    # The alternating starts and ends of a set are already ascending, and sorting them would take most of the time.
    edges = np.column_stack(at).ravel()
    low, high = np.searchsorted(edges, starts, side="right"), np.searchsorted(edges, ends, side="left")
    pieces = np.maximum(high - low, 0) + 1
    index, nth = repeated(pieces)
    padded = np.append(edges, 0)
    begin = np.where(nth == 0, starts[index], padded[np.minimum(low[index] + nth - 1, len(edges))])
    stop = np.where(nth == pieces[index] - 1, ends[index], padded[np.minimum(low[index] + nth, len(edges))])
    return index, begin, stop


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
    if len(b[0]) == 1:  # a window, as of all steps
        starts, ends = np.maximum(a[0], b[0]), np.minimum(a[1], b[1])
        kept = starts < ends
        return starts[kept], ends[kept]
    return _both(a, b, 2)


def subtract(a: IntervalSet, b: IntervalSet) -> IntervalSet:
    """Return the part of *a* outside *b*."""
    if not len(a[0]) or not len(b[0]):
        return a
    return _both(a, b, 1)


# Functions of NumPy arrays.

Scalar = TypeVar("Scalar", bound=np.generic)


def unique(values: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return the distinct values in ascending order.

    ``np.unique`` does the same, but imports ``numpy.ma``, which takes 10 ms, and hashes values that are nearly sorted.

    >>> unique(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered = np.sort(values, kind="stable")
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def mask_of(indices: NDArray[np.integer] | Sequence[int], count: int) -> NDArray[np.bool_]:
    """Return which of *count* entries are among *indices*, of which -1 stands for none.

    ``np.isin`` and ``np.setdiff1d`` do the same by sorting.

    >>> mask_of([2, 0, -1], 4).tolist()
    [True, False, True, False]
    """
    mask = np.zeros(count + 1, np.bool_)
    mask[indices] = True
    return mask[:count]


def repeated(counts: Int64) -> tuple[Int64, Int64]:
    """Repeat the indices of *counts* that often; also return which repetition each one is.

    >>> [column.tolist() for column in repeated(np.array([2, 0, 3]))]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)


def members(group: NDArray[np.integer], groups: int) -> list[Int64]:
    """Return the places of the members of each group, ascending: by one sort, not a look at all for each group.

    >>> [own.tolist() for own in members(np.array([2, 0, 2]), 3)]
    [[1], [], [0, 2]]
    """
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(groups + 1))
    return [order[begin:end] for begin, end in pairwise(bounds.tolist())]


def sums(group: NDArray[np.integer], values: ArrayLike, groups: int) -> Int64:
    """Return the sum of the values of each group; ``np.bincount`` would sum in doubles.

    >>> sums(np.array([0, 2, 0]), [1, 2, 3], 3).tolist()
    [4, 0, 2]
    """
    found = np.zeros(groups, np.int64)
    np.add.at(found, group, values)
    return found


def first_pair(known: tuple[Int64, Int64], wanted: tuple[Int64, Int64]) -> Int64:
    """Return the index of the first known pair of numbers that equals each wanted one, or -1."""
    count = len(known[0])
    if not count:
        return np.full(len(wanted[0]), -1, np.int64)
    # A pair becomes one number: those of both sides are numbered together, 7 and 9 of [5, 7, 9] → 1·3 + 2.
    _, one = np.unique(np.append(known[0], wanted[0]), return_inverse=True)
    others, other = np.unique(np.append(known[1], wanted[1]), return_inverse=True)
    key = one * len(others) + other
    keys, first = np.unique(key[:count], return_index=True)
    place = np.minimum(np.searchsorted(keys, key[count:]), len(keys) - 1)
    return np.where(keys[place] == key[count:], first[place], -1)


def median(values: ArrayLike, axis: int = 0) -> Any:
    """Return the median along an axis, as float64; NaN of no values, or where one is NaN.

    ``np.median`` does the same, but imports ``numpy.ma``.

    >>> float(median([3, 1, 2, 10]))
    2.5
    """
    ordered = np.sort(values, axis=axis)
    count = ordered.shape[axis]
    if not count:
        return np.full(np.delete(ordered.shape, axis), np.nan)[()]
    low, high, last = (ordered.take(i, axis).astype(np.float64) for i in ((count - 1) // 2, count // 2, -1))
    return np.where(np.isnan(last), np.nan, (low + high) / 2)[()]
