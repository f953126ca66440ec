"""Assign overlapping slices to lanes, for formats in which the slices of a track must not overlap."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64

__all__ = ["assign_lanes"]


def assign_lanes(start_ns: Int64, end_ns: Int64) -> NDArray[np.int32]:
    """Assign each slice to the lowest lane on which nothing else is running.

    The slices are sorted by start. Perfetto and Chrome require the slices of one thread to nest, so a kernel that
    starts before the previous one on its stream has ended needs another lane::

        slice   A  0..10   B  4..6   C  5..12   D  6..8   E  12..20   F  20..30

        lane 0  A  0..10                                  E  12..20   F  20..30
        lane 1             B  4..6              D  6..8
        lane 2                       C  5..12

    A takes lane 0, which is busy for B and C; D follows B, which ends at 6; when E starts, all lanes are free and it
    takes the lowest. E and F overlap nothing (a slice may start where another ends). Only clusters like A to D enter
    the loop, so a stream without overlap costs one comparison per slice; the worst case is O(n log n).
    """
    lane = np.zeros(len(start_ns), np.int32)
    if not len(start_ns):
        return lane
    reach = np.maximum.accumulate(end_ns)
    begins = np.concatenate(([True], start_ns[1:] >= reach[:-1]))
    firsts = np.flatnonzero(begins)
    lasts = np.append(firsts[1:], len(start_ns))
    crowded = lasts - firsts > 1
    for first, last in zip(firsts[crowded].tolist(), lasts[crowded].tolist(), strict=True):
        lane[first:last] = _pack(start_ns[first:last].tolist(), end_ns[first:last].tolist())
    return lane


def _pack(starts: list[int], ends: list[int]) -> list[int]:
    """Assign lanes within one cluster, with the running slices in a heap by end."""
    running: list[tuple[int, int]] = []
    free: list[int] = []
    lanes: list[int] = []
    for start, end in zip(starts, ends, strict=True):
        while running and running[0][0] <= start:
            heapq.heappush(free, heapq.heappop(running)[1])
        # Every lane is either running or free, so without a free lane the number of running ones is the next.
        lane = heapq.heappop(free) if free else len(running)
        heapq.heappush(running, (end, lane))
        lanes.append(lane)
    return lanes
