"""Merge the short intervals of a chart that is too large for one file, so that its times stay exact at a resolution.

Time is cut into cells of 2**k ns and at the bounds of steps. In each cell, the short intervals of a category become
one, as long as what they cover in addition to the long ones. So sums between multiples of the resolution do not change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, IntervalSet, covered, repeated, union, unique
from dptrace.core.units import duration
from dptrace.viewers.gantt.chart import Chart, Lane, Role

_WHOLE = {Role.COLLECTIVES}
"""Lanes that stay as they are: few intervals, to which details belong."""
_BY_STREAM = {Role.COMPUTE, Role.MEMORY}
"""Lanes whose intervals are merged by stream; those of the others by what their name refers to."""
_FIRST_TRY = 8
"""Number of times that the first resolution is finer than one that would fill the page with cells."""


@dataclass(frozen=True, slots=True)
class MergedChart:
    """A chart that fits, and what it lost."""

    chart: Chart
    resolution_ns: int
    """Intervals up to this long are merged; 0 if none are."""
    left_out: int
    """How many kernels, operators and copies are not in the chart any more."""


def merge_intervals(chart: Chart, most: int) -> MergedChart:
    """Return a chart of at most *most* intervals, at the finest resolution that has so few; longer ones are kept.

    The result is larger than *most* if its collectives alone are.
    """
    if len(chart) <= most:
        return MergedChart(chart, 0, 0)
    fewer, name = chart, len(chart.names)
    resolution = 1 << int(np.log2(max(len(chart.lanes) * chart.end_ns / most / _FIRST_TRY, 1)))
    while len(fewer) > most and resolution < chart.end_ns:
        # What is merged already is merged again: cells of twice the size hold whole ones.
        fewer = replace(fewer, lanes=tuple(_merged_lane(fewer, lane, resolution, name) for lane in fewer.lanes))
        resolution *= 2
    resolution //= 2
    left_out = sum(int((lane.duration_ns <= resolution).sum()) for lane in chart.lanes if lane.role in _BY_STREAM)
    names = (*chart.names, f"several, each up to {duration(resolution)}")
    return MergedChart(replace(fewer, names=names), resolution, left_out)


def _merged_lane(chart: Chart, lane: Lane, resolution: int, name: int) -> Lane:
    """Merge the intervals of a lane up to *resolution* ns; *name* is what the result is called where it had names."""
    short = lane.duration_ns <= resolution
    if lane.role in _WHOLE or not short.any():
        return lane
    if lane.role is Role.PHASE_LABELS:
        return _chosen(lane, ~short)
    edges = _edges(lane, chart.tracks[lane.track].bounds_ns, resolution)
    by_stream = lane.role in _BY_STREAM
    pieces = _cells(lane, short, edges, lane.stream if by_stream else lane.name)
    kept = _chosen(lane, ~short)
    count = len(pieces.start_ns)
    name_of, stream = (np.full(count, name), pieces.group) if by_stream else (pieces.group, np.zeros(count, np.int64))
    order = np.argsort(np.concatenate((kept.start_ns, pieces.start_ns)), kind="stable")
    return replace(
        kept,
        start_ns=np.concatenate((kept.start_ns, pieces.start_ns))[order],
        duration_ns=np.concatenate((kept.duration_ns, pieces.duration_ns))[order],
        category=np.concatenate((kept.category, pieces.category))[order],
        name=np.concatenate((kept.name, name_of))[order],
        stream=np.concatenate((kept.stream, stream))[order],
    )


def _chosen(lane: Lane, mask: NDArray[np.bool_]) -> Lane:
    return replace(
        lane,
        start_ns=lane.start_ns[mask],
        duration_ns=lane.duration_ns[mask],
        category=lane.category[mask],
        name=lane.name[mask],
        stream=lane.stream[mask],
    )


def _edges(lane: Lane, bounds: Int64, resolution: int) -> Int64:
    low, high = int(lane.start_ns.min()), int((lane.start_ns + lane.duration_ns).max())
    regular = np.arange(low // resolution, high // resolution + 2) * resolution
    return unique(np.concatenate((regular, bounds[(bounds > regular[0]) & (bounds < regular[-1])])))


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Merged intervals: of a cell, a category and a group; a group is a stream, a collective, or a rank waited for."""

    start_ns: Int64
    duration_ns: Int64
    category: NDArray[np.uint8]
    group: Int64


def _cells(lane: Lane, short: NDArray[np.bool_], edges: Int64, group: Int64) -> _Pieces:
    """Return the merged short intervals of a lane.

    The groups of a cell lie one after the other, the last ones back from the end where they overlap: groups of 3, 2 and
    4 ns that cover 6 ns together lie at 0-3, 3-5 and 2-6.
    """
    cell, category, of, ns = _sums(lane, short, edges, group)
    start, room = np.zeros(len(cell), np.int64), np.zeros(len(cell), np.int64)
    for one in unique(category):
        mine, all_of_it = category == one, lane.category == one
        begins, free = _free(lane, all_of_it, short, edges)
        start[mine], room[mine] = begins[cell[mine]], free[cell[mine]]
    ns = np.minimum(ns, room)
    # The ns of earlier groups in the same cell and category.
    total = np.cumsum(ns) - ns
    first = np.ones(len(cell), np.bool_)
    first[1:] = (cell[1:] != cell[:-1]) | (category[1:] != category[:-1])
    total -= total[np.maximum.accumulate(np.where(first, np.arange(len(cell)), 0))]
    start += np.minimum(total, room - ns)
    some = ns > 0
    return _Pieces(start[some], ns[some], category[some].astype(np.uint8), of[some])


def _sums(
    lane: Lane, short: NDArray[np.bool_], edges: Int64, group: Int64
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], Int64]:
    """Return the ns of the short intervals by cell, category and group, as columns sorted by these."""
    start = lane.start_ns[short]
    end = start + lane.duration_ns[short]
    low = np.searchsorted(edges, start, "right") - 1
    high = np.maximum(np.searchsorted(edges, end, "left") - 1, low)
    # An interval over three cells becomes three: its number 7, 7, 7 with the cells 4, 5, 6.
    number, nth = repeated(high - low + 1)
    cell = low[number] + nth
    ns = np.minimum(end[number], edges[cell + 1]) - np.maximum(start[number], edges[cell])
    groups = unique(group[short])
    key = (cell * 256 + lane.category[short][number]) * len(groups) + np.searchsorted(groups, group[short])[number]
    # A stable sort is fast here, since the cells are nearly in order.
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    keys, sums = key[first], np.add.reduceat(ns[order], first)
    return keys // (256 * len(groups)), keys // len(groups) % 256, groups[keys % len(groups)], sums


def _free(lane: Lane, mine: NDArray[np.bool_], short: NDArray[np.bool_], edges: Int64) -> tuple[Int64, Int64]:
    """Return for each cell where to put the short intervals of a category, next to long ones, and what they cover.

    A long interval is longer than a cell, so that the room of a cell is in one piece.
    """
    ends = lane.start_ns + lane.duration_ns
    long: IntervalSet = union(lane.start_ns[mine & ~short], ends[mine & ~short])
    everything = union(lane.start_ns[mine], ends[mine])
    room = np.diff(covered(everything, edges)) - np.diff(covered(long, edges))
    begins, stops = edges[:-1].copy(), edges[1:].copy()
    if len(long[0]):
        last = np.searchsorted(long[0], begins, "right") - 1
        begins = np.where(last >= 0, np.maximum(begins, long[1][last]), begins)
        following = np.minimum(last + 1, len(long[0]) - 1)
        stops = np.where(long[0][following] >= begins, np.minimum(stops, long[0][following]), stops)
    # In the middle, an edge of a pixel is off by half as much as at the start.
    return begins + np.maximum(0, stops - begins - room) // 2, room
