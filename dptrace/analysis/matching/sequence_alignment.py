"""Align two sequences of times of the same events, where each sequence may lack some events."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64

__all__ = ["align", "estimate_offset_by_time"]

Fits = Callable[[Int64, Int64], NDArray[np.bool_]]
"""For indices into both sequences (broadcast), whether the two may be the same event."""

_CELLS = 1 << 18
"""Most cells in the table of one cluster; a larger cluster is split by a shorter reach."""


def _all_fit(first: Int64, second: Int64) -> NDArray[np.bool_]:
    return np.ones(np.broadcast_shapes(first.shape, second.shape), np.bool_)


def align(first: Int64, second: Int64, reach: int, fits: Fits = _all_fit) -> tuple[Int64, Int64]:
    """Pair times without crossings so that the pairs are as many and as close as possible.

    A pair at distance d is worth ``reach - d``; pairs without worth are not made, and the total worth is maximal. Most
    times are isolated with their partner and need no search: the cost is the sorting, and a small table for each
    cluster of times within reach of each other.

    Args:
        first, second: times in ns, each ascending, on one clock.
        reach: largest distance between two times of one event, in ns.

    Returns:
        Indices into both, of equal length, both ascending.
    """
    count = len(first)
    times = np.concatenate((first, second))
    order = np.argsort(times, kind="stable")
    cuts = np.flatnonzero(np.diff(times[order]) >= reach) + 1
    begin = np.concatenate(([0], cuts)) if len(order) else np.empty(0, np.int64)
    size = np.diff(np.append(begin, len(order)))
    pairs = begin[size == 2]
    a, b = np.minimum(order[pairs], order[pairs + 1]), np.maximum(order[pairs], order[pairs + 1]) - count
    good = (a < count) & (b >= 0)
    a, b = a[good], b[good]
    good = fits(a, b)
    found = [(a[good], b[good])]
    for place in np.flatnonzero(size > 2):
        members = np.sort(order[begin[place] : begin[place] + size[place]])
        a, b = members[members < count], members[members >= count] - count
        if len(a) and len(b):
            found.append(_cluster(first, second, a, b, reach, fits))
    a, b = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.argsort(a, kind="stable")
    return a[order], b[order]


def _cluster(first: Int64, second: Int64, a: Int64, b: Int64, reach: int, fits: Fits) -> tuple[Int64, Int64]:
    if len(a) * len(b) > _CELLS:
        if reach < 2:
            return _in_order(a, b, fits)
        near = align(first[a], second[b], reach // 2, lambda i, j: fits(a[i], b[j]))
        return a[near[0]], b[near[1]]
    worth = reach - np.abs(first[a][:, None] - second[b])
    worth = np.where(fits(a[:, None], b[None, :]), worth, 0)
    i, j = _best(worth)
    return a[i], b[j]


def _in_order(a: Int64, b: Int64, fits: Fits) -> tuple[Int64, Int64]:
    """Pair a very large cluster of equal times one by one, in order."""
    a, b = a[: len(b)], b[: len(a)]
    good = fits(a, b)
    return a[good], b[good]


def _best(worth: Int64) -> tuple[Int64, Int64]:
    """Choose cells with the greatest sum, each below and to the right of the previous one."""
    rows, columns = worth.shape
    total = np.zeros((rows + 1, columns + 1), np.int64)
    for i in range(rows):
        np.maximum(total[i, 1:], total[i, :-1] + worth[i], out=total[i + 1, 1:])
        np.maximum.accumulate(total[i + 1], out=total[i + 1])
    chosen: list[tuple[int, int]] = []
    i, j = rows, columns
    while total[i, j]:
        if total[i, j] == total[i - 1, j]:
            i -= 1
        elif total[i, j] == total[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            chosen.append((i, j))
    pairs = np.array(chosen[::-1], np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


_WIDTHS = (100_000, 1_000_000, 10_000_000)
"""Distances in ns between the ends of one collective on two ranks: on one machine, over a network, with gloo."""
_SAMPLE = 32
_AGAINST = 1 << 16


def estimate_offset_by_time(
    first: Int64, second: Int64, first_sort: NDArray[np.int32], second_sort: NDArray[np.int32]
) -> tuple[int, int] | None:
    """Estimate how far the clock of *second* is ahead of that of *first*, from times alone.

    A sample of one sequence is compared with all times of the same sort in the other: the offset is the one on which
    most pairs agree, and the smallest among equals, as with very regular times.

    Args:
        first, second: times in ns, ascending, of partly the same events.
        first_sort, second_sort: a number per time; only events with equal numbers can be the same.

    Returns:
        The offset in ns and the scatter of the pairs about it, or None if no offset explains half of the sample.
    """
    swapped = len(second) > len(first)
    few, many = (first, second) if swapped else (second, first)
    few_sort, many_sort = (first_sort, second_sort) if swapped else (second_sort, first_sort)
    middle = max((len(few) - _SAMPLE) // 2, 0)
    few, few_sort = few[middle : middle + _SAMPLE], few_sort[middle : middle + _SAMPLE]
    at = np.searchsorted(many, few[:1]).sum() - _AGAINST // 2
    low = min(max(int(at), 0), max(len(many) - _AGAINST, 0))
    many, many_sort = many[low : low + _AGAINST], many_sort[low : low + _AGAINST]
    differences = np.sort((few[:, None] - many)[few_sort[:, None] == many_sort])
    differences = np.sort(-differences) if swapped else differences
    for width in _WIDTHS:
        votes = np.searchsorted(differences, differences + width, side="right") - np.arange(len(differences))
        most = int(votes.max(initial=0))
        if most * 2 >= len(few) and most:
            ahead = np.flatnonzero(votes * 10 >= most * 9)
            middles = differences[ahead + votes[ahead] // 2]
            return int(middles[np.argmin(np.abs(middles))]), width
    return None
