"""Lanes for tests of tiles, made by hand or by hypothesis, and their time by brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dptrace.core.intervals import covered, union
from dptrace.viewers.gantt.tiles.index import LaneColumns


def columns_of(start: NDArray[np.int64], duration: NDArray[np.int64], category: NDArray[np.integer]) -> LaneColumns:
    """Make the columns of a lane; names and streams are numbers that follow from the position."""
    order = np.argsort(start, kind="stable")
    place = np.arange(len(start))
    return LaneColumns(start[order], duration[order], category.astype(np.uint8)[order], place % 5, place % 3)


def random_lane(count: int, seed: int = 0, gap_ns: int = 500, longest_ns: int = 2_000) -> LaneColumns:
    """Make a lane of *count* intervals of three categories, many of which overlap."""
    draw = np.random.default_rng(seed)
    start = np.cumsum(draw.integers(0, gap_ns, count))
    return columns_of(start, draw.integers(0, longest_ns, count), np.array([2, 3, 9])[draw.integers(0, 3, count)])


@st.composite
def lanes(draw: st.DrawFn) -> LaneColumns:
    """Draw a lane of up to some hundred intervals, dense or with gaps and lengths of many seconds."""
    count = draw(st.integers(0, 300))
    gap, longest = draw(st.sampled_from([(3, 5), (50, 400), (2, 10_000), (6_000_000_000, 3), (9, 5_000_000_000)]))
    made = random_lane(count, draw(st.integers(0, 2**32 - 1)), gap, longest)
    shift = draw(st.integers(-1000, 1000))
    return LaneColumns(made.start_ns + shift, made.duration_ns, made.category, made.name, made.stream)


def brute_cover(lane: LaneColumns, category: int, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ns that a category covers before each edge, from its union."""
    mine = lane.category == category
    start = lane.start_ns[mine]
    return np.asarray(covered(union(start, start + lane.duration_ns[mine]), edges), np.float64)
