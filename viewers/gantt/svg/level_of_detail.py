"""Exact level of detail for pictures drawn without a browser; static/data/lod.js is the same in JavaScript.

Both are tested against the golden vectors in tests/golden/lod.json.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, covered, union

__all__ = ["Intervals", "Lod"]


@dataclass(frozen=True, slots=True)
class Intervals:
    """One lane: intervals sorted by start, which can overlap; each column has an entry per interval."""

    start_ns: Int64
    duration_ns: Int64
    category: NDArray[np.integer]


class Lod:
    """The busy share of each pixel column of a lane, and the intervals that are wide enough to be drawn whole."""

    def __init__(self, lane: Intervals, categories: int) -> None:
        self.lane, ends = lane, lane.start_ns + lane.duration_ns
        masks = [lane.category == category for category in range(categories)]
        self._covers = [union(lane.start_ns[mask], ends[mask]) for mask in masks]

    def density(self, start_ns: float, end_ns: float, width: int) -> NDArray[np.float64]:
        """Return the busy share of each of *width* columns of a window, as an array (categories, columns)."""
        edges = start_ns + np.arange(width + 1) * ((end_ns - start_ns) / width)
        return np.array([np.diff(covered(cover, edges)) for cover in self._covers]) * (width / (end_ns - start_ns))

    def long(self, start_ns: float, end_ns: float, shortest_ns: float) -> Int64:
        """Return the intervals of at least *shortest_ns* that touch a window, largest power of two first.

        Drawn in this order, no interval hides a much shorter one.
        """
        starts, durations = self.lane.start_ns, self.lane.duration_ns
        index = np.flatnonzero((durations >= shortest_ns) & (starts < end_ns) & (starts + durations > start_ns))
        power = np.floor(np.log2(np.maximum(durations[index], 1)))
        return index[np.argsort(-power, kind="stable")]
