"""Pair two rows of times that tell of the same things, where each row may lack some of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64

__all__ = ["align", "vote"]

Fits = Callable[[Int64, Int64], NDArray[np.bool_]]
"""Tells of indices into both rows (that broadcast) whether the two may be one thing."""

_CELLS = 1 << 18
"""What the table of one cluster may hold; a larger cluster is looked at with a shorter reach."""


def _all_fit(first: Int64, second: Int64) -> NDArray[np.bool_]:
    return np.ones(np.broadcast_shapes(first.shape, second.shape), np.bool_)


def align(first: Int64, second: Int64, reach: int, fits: Fits = _all_fit) -> tuple[Int64, Int64]:
    """Pair times so that pairs don't cross and are as many and as close as can be.

    A pair that is d apart is worth ``reach - d``, and none is made that is worth nothing; of all ways to pair, one
    of the greatest worth is taken. Almost all times stand alone with their partner, which needs no search: it costs
    the sorting, and a small table for each cluster of times within reach of each other.

    Args:
        first, second: times in ns, each ascending, on one clock.
        reach: how far apart two times of one thing can be at most, in ns.

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
    """Pair very many equal times one by one, as they come."""
    a, b = a[: len(b)], b[: len(a)]
    good = fits(a, b)
    return a[good], b[good]


def _best(worth: Int64) -> tuple[Int64, Int64]:
    """Choose cells, each below and to the right of the one before, with the greatest sum."""
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
"""How far apart, in ns, the ends of one collective may be on two ranks: on one machine, over a network, with gloo."""
_SAMPLE = 32
_AGAINST = 1 << 16


def vote(
    first: Int64, second: Int64, first_sort: NDArray[np.int32], second_sort: NDArray[np.int32]
) -> tuple[int, int] | None:
    """Guess by how much the clock of *second* is ahead of that of *first*, from times alone.

    Some times of one row are held against all of the other's that are of the same sort: the right offset is the one
    that the most pairs agree on. Of several as good, as with very regular times, it is the smallest.

    Args:
        first, second: times in ns, ascending, of some of the same things.
        first_sort, second_sort: a number per time; only things with equal numbers can be the same.

    Returns:
        The offset in ns and how far pairs scatter about it, or nothing when no offset explains half of the sample.
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
