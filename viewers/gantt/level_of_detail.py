"""Exact level of detail for pictures drawn without a browser; static/lod.js is the same in JavaScript.

Both are tested against the golden vectors in tests/golden/lod.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64

__all__ = ["Intervals", "Lod"]

_Times = Int64 | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Intervals:
    """One lane: intervals sorted by start, which can overlap; each column has an entry per interval."""

    start_ns: Int64
    duration_ns: Int64
    category: NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class _Cover:
    """The time that one category covers on one lane, as disjoint intervals."""

    start: Int64
    end: Int64
    before: Int64
    """ns covered before each interval, and in total."""

    def until(self, times: _Times) -> NDArray[np.float64]:
        """Return the ns covered before each time."""
        index = np.searchsorted(self.start, times, side="right")
        last = np.maximum(index - 1, 0)
        over = np.maximum(0, self.end[last] - times) if len(self.end) else np.zeros(len(times))
        return np.where(index > 0, self.before[index] - over, 0)


class Lod:
    """The busy share of each pixel column, and the intervals that are wide enough to be drawn whole."""

    def __init__(self, lanes: Sequence[Intervals], categories: int) -> None:
        self.lanes, self.categories = tuple(lanes), categories
        self._covers = [[_cover(lane, category) for category in range(categories)] for lane in self.lanes]

    def busy(self, lane: int, category: int, start_ns: int, end_ns: int) -> int:
        """Return the ns of a window that a category covers on a lane."""
        if end_ns <= start_ns:
            return 0
        low, high = self._covers[lane][category].until(np.array([start_ns, end_ns], np.int64))
        return int(high - low)

    def density(self, start_ns: float, end_ns: float, width: int, lanes: Sequence[int]) -> NDArray[np.float64]:
        """Return the busy share of each of *width* columns of a window, as an array (lanes, categories, columns)."""
        edges = np.asarray(start_ns + np.arange(width + 1) * ((end_ns - start_ns) / width), np.float64)
        shares = np.zeros((len(lanes), self.categories, width))
        for position, lane in enumerate(lanes):
            for category, cover in enumerate(self._covers[lane]):
                if len(cover.start):
                    shares[position, category] = np.diff(cover.until(edges)) * (width / (end_ns - start_ns))
        return shares

    def long(self, lane: int, start_ns: float, end_ns: float, shortest_ns: float) -> Int64:
        """Return the intervals of a lane of at least *shortest_ns* that touch a window, largest power of two first.

        Drawn in this order, no interval hides a much shorter one.
        """
        intervals = self.lanes[lane]
        starts, durations = intervals.start_ns, intervals.duration_ns
        index = np.flatnonzero((durations >= shortest_ns) & (starts < end_ns) & (starts + durations > start_ns))
        power = np.floor(np.log2(np.maximum(durations[index], 1)))
        return index[np.argsort(-power, kind="stable")]


def _cover(lane: Intervals, category: int) -> _Cover:
    mask = lane.category == category
    start, end = lane.start_ns[mask], (lane.start_ns + lane.duration_ns)[mask]
    reach = np.maximum.accumulate(end) if len(end) else end
    begin = np.maximum(start, np.concatenate((start[:1], reach[:-1])))
    return _Cover(begin, reach, np.concatenate((np.zeros(1, np.int64), np.cumsum(reach - begin))))
