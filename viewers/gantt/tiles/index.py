"""Ask a lane's index: the time that each category covers, the intervals in a window, and the one at a place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dptrace.core.columns import Columns
from dptrace.core.intervals import Int64, unique

# Index the intervals of a lane in blocks: what each category covers before a block, and where its intervals lie.
#
# A block is one record of BLOCK intervals and all that a query at one time needs, so that it costs one page of a mapped
# file. Overlaps count once: the *gain* of an interval is what it adds to the time that its category covers::
#
#     cover before t = before - max(0, reach - t) + sum of clip(t - begin, 0, gain) over the block, begin = end - gain


BLOCK = 64
NEVER = -(2**60)
"""End of the intervals of a category before its first one."""
_CHUNK = 2**20
"""Intervals that are worked on at a time."""
_NARROW = 2**32
"""Times below it are kept in four bytes."""

Allocate: TypeAlias = Callable[[Any, tuple[int, ...]], NDArray[Any]]
"""Return an array of a type and shape, in memory or in a mapped file."""


@dataclass(frozen=True, slots=True)
class LaneColumns:
    """The intervals of a lane, sorted by start; each column has an entry per interval."""

    start_ns: Int64
    duration_ns: Int64
    category: NDArray[np.integer]
    name: NDArray[np.integer]
    stream: NDArray[np.integer]
    """Small non-negative numbers of the streams."""


@dataclass(frozen=True, slots=True)
class LaneIndex:
    """A lane's blocks, and what is searched without touching them."""

    count: int
    """Number of intervals."""
    categories: tuple[int, ...]
    """The categories that occur, ascending; a block's columns hold positions in this tuple."""
    heads: Int64
    """Per block: first start, latest end, longest duration, and latest end so far; shape (4, blocks)."""
    blocks: NDArray[Any]
    """Structured array; times of intervals are relative to ``first``."""

    @property
    def overlaps(self) -> bool:
        """Whether intervals of a category overlap."""
        return "gain" in (self.blocks.dtype.names or ())


def index_lane(columns: LaneColumns, allocate: Allocate = lambda kind, shape: np.empty(shape, kind)) -> LaneIndex:
    """Build the index of a lane, a chunk of intervals at a time."""
    count = len(columns.start_ns)
    number = -(-count // BLOCK)
    categories = unique(np.flatnonzero(np.bincount(columns.category, minlength=1)))
    slot = np.zeros(256, np.uint8)
    slot[categories] = np.arange(len(categories))
    heads = allocate(np.int64, (4, number))
    blocks = allocate(_block_type(columns, len(categories), _overlaps(columns)), (number,))
    total, reach = np.zeros(len(categories), np.int64), np.full(len(categories), NEVER)
    latest = NEVER
    for low in range(0, count, _CHUNK):
        part = slice(low, low + _CHUNK)
        start, duration = columns.start_ns[part], columns.duration_ns[part]
        place = slice(low // BLOCK, low // BLOCK + -(-len(start) // BLOCK))
        chunk = blocks[place]
        chunk["category"] = _by_block(slot[columns.category[part]])
        chunk["name"], chunk["stream"] = _by_block(columns.name[part]), _by_block(columns.stream[part])
        _put_times(chunk, heads[:, place], start, duration, latest)
        latest = int(heads[3, place][-1])
        gain = _accumulate(chunk, start, duration, slot[columns.category[part]], total, reach)
        if "gain" in (chunk.dtype.names or ()):
            chunk["gain"] = _by_block(gain)
    return LaneIndex(count, tuple(categories.tolist()), heads, blocks)


def _by_block(values: NDArray[Any]) -> NDArray[Any]:
    return np.pad(values, (0, -len(values) % BLOCK)).reshape(-1, BLOCK)


def _overlaps(columns: LaneColumns) -> bool:
    """Return whether any intervals overlap; those of different categories do not matter, but this is simpler."""
    ends = columns.start_ns + columns.duration_ns
    return bool((columns.start_ns[1:] < ends[:-1]).any())


def _block_type(columns: LaneColumns, categories: int, overlaps: bool) -> np.dtype[Any]:
    """Return the type of a block: times in four bytes each, or eight if one does not fit."""
    first = columns.start_ns[::BLOCK]
    last = columns.start_ns[np.minimum(np.arange(len(first)) * BLOCK + BLOCK, len(columns.start_ns)) - 1]
    largest = max(int((last - first).max(initial=0)), 0) + int(columns.duration_ns.max(initial=0))
    times = np.dtype("<u4" if largest < _NARROW else "<i8")
    names = np.dtype("<u2" if int(columns.name.max(initial=0)) < 2**16 else "<u4")
    gain = [("gain", times, BLOCK)] if overlaps else []
    return np.dtype(
        [
            ("first", "<i8"),
            ("before", "<i8", (categories,)),
            ("reach", "<i8", (categories,)),
            ("start", times, BLOCK),
            ("duration", times, BLOCK),
            *gain,
            ("category", "u1", BLOCK),
            ("name", names, BLOCK),
            ("stream", "<u2", BLOCK),
        ]
    )


def _put_times(chunk: NDArray[Any], heads: Int64, start: Int64, duration: Int64, latest: int) -> None:
    first = start[::BLOCK]
    chunk["first"] = heads[0] = first
    relative = start - np.repeat(first, BLOCK)[: len(start)]
    chunk["start"], chunk["duration"] = _by_block(relative), _by_block(duration)
    padding = -len(start) % BLOCK
    if padding:
        chunk["start"][-1, -padding:] = relative[-1]
    ends = np.pad(start + duration, (0, padding), constant_values=NEVER).reshape(-1, BLOCK)
    heads[1], heads[2] = ends.max(axis=1), chunk["duration"].max(axis=1)
    heads[3] = np.maximum(np.maximum.accumulate(heads[1]), latest)


def _accumulate(
    chunk: NDArray[Any], start: Int64, duration: Int64, slots: NDArray[np.uint8], total: Int64, reach: Int64
) -> Int64:
    """Fill in what each category covers before each block and its latest end; return the gains.

    Args:
        total, reach: those before the chunk; updated to those after it.
    """
    end, gain = start + duration, np.zeros(len(start), np.int64)
    for slot in range(len(total)):
        index = np.flatnonzero(slots == slot)
        latest = np.maximum.accumulate(np.concatenate((reach[slot : slot + 1], end[index])))
        gain[index] = np.maximum(0, end[index] - np.maximum(start[index], latest[:-1]))
        # Those of the category before each block, as a position in `index`.
        before = np.searchsorted(index, np.arange(0, len(start), BLOCK))
        sums = np.concatenate(([0], np.cumsum(gain[index])))
        chunk["before"][:, slot], chunk["reach"][:, slot] = total[slot] + sums[before], latest[before]
        total[slot] += sums[-1]
        reach[slot] = latest[-1]
    return gain


_PLACES = np.arange(BLOCK)


class Rows(Columns, frozen=True):
    """Some intervals of a lane in the order of their starts."""

    position: Int64
    """Number of each interval in its lane."""
    start_ns: Int64
    duration_ns: Int64
    category: NDArray[np.uint8]
    name: NDArray[np.integer]
    stream: NDArray[np.integer]


class Lane:
    """A lane of a chart; its arrays may be views of a mapped file. All answers are exact."""

    def __init__(self, index: LaneIndex) -> None:
        self.index, self.count, self.categories = index, index.count, index.categories
        self.first, self.end, self.longest, self.reach = index.heads
        self._blocks = index.blocks
        self._gain = "gain" if index.overlaps else "duration"
        self._category = np.array(index.categories, np.uint8)

    def cover(self, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the ns that each category covers before each of the ascending *edges*: categories by edges."""
        if not self.count or not len(edges):
            return np.zeros((len(self.categories), len(edges)))
        # Whole numbers, since floats would make NumPy convert the whole column.
        whole = np.floor(edges).astype(np.int64)
        block = np.maximum(np.searchsorted(self.first, whole, "right") - 1, 0)
        low, high = int(block[0]), int(block[-1]) + 1
        # With few intervals to an edge, reading all of them is faster; with more, only the block of each edge is read.
        return self._cover_near(low, high, edges) if 2 * (high - low) <= len(edges) else self._cover_at(block, edges)

    def _cover_at(self, block: NDArray[np.intp], edges: NDArray[np.float64]) -> NDArray[np.float64]:
        # Field by field: whole records would be copied with names and streams.
        records = self._blocks
        gain, begin = records[self._gain][block], records["start"][block]
        if self.index.overlaps:
            begin = begin.astype(np.int64) + records["duration"][block] - gain
        part = (edges - records["first"][block])[:, None] - begin
        np.minimum(np.maximum(part, 0, out=part), gain, out=part)
        slots = len(self.categories)
        cell = np.arange(len(block))[:, None] * slots + records["category"][block]
        inside = np.bincount(cell.ravel(), part.ravel(), len(block) * slots).reshape(-1, slots)
        cover = records["before"][block] - np.maximum(0, records["reach"][block] - edges[:, None]) + inside
        return np.asarray(cover.T, np.float64)

    def _cover_near(self, low: int, high: int, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        records = self._blocks[low:high]
        gain = records[self._gain].astype(np.int64)
        begin = (records["first"][:, None] + records["start"].astype(np.int64) + records["duration"] - gain).ravel()
        gain, category = gain.ravel(), records["category"].ravel()
        out: NDArray[np.float64] = (records["before"][0] - np.maximum(0, records["reach"][0] - edges[:, None])).T
        whole = np.floor(edges).astype(np.int64)
        for slot in range(len(self.categories)):
            mine = np.flatnonzero((category == slot) & (gain > 0))
            if len(mine):
                begins, sums = begin[mine], np.concatenate(([0], np.cumsum(gain[mine])))
                index = np.searchsorted(begins, whole, "right")
                beyond = np.maximum(0, (begins + gain[mine])[index - 1] - edges)
                out[slot] += np.where(index > 0, sums[index] - beyond, 0)
        return out

    def window(self, start_ns: float, end_ns: float, shortest_ns: float = 0, most: int = 0) -> tuple[Rows, bool]:
        """Return the intervals that touch a window, and whether these are all.

        They are all if the blocks that hold them have at most *most* entries; else those of at least *shortest_ns*.
        """
        low = int(np.searchsorted(self.reach, int(np.floor(start_ns)), "right"))
        high = int(np.searchsorted(self.first, int(np.ceil(end_ns)), "left"))
        touching = self.end[low:high] > start_ns
        all_of_them = int(touching.sum()) * BLOCK <= most or shortest_ns <= 0
        chosen = touching if all_of_them else touching & (self.longest[low:high] >= shortest_ns)
        rows = self.rows_of_blocks(low + np.flatnonzero(chosen))
        kept = (rows.start_ns < end_ns) & (rows.start_ns + rows.duration_ns > start_ns)
        return rows.take(kept if all_of_them else kept & (rows.duration_ns >= shortest_ns)), all_of_them

    def rows_of_blocks(self, blocks: NDArray[np.intp]) -> Rows:
        """Return all intervals of some blocks."""
        records = self._blocks[blocks]
        position = (blocks[:, None] * BLOCK + _PLACES).ravel()
        rows = Rows(
            position.astype(np.int64),
            (records["first"][:, None] + records["start"].astype(np.int64)).ravel(),
            records["duration"].astype(np.int64).ravel(),
            self._category[records["category"].ravel()] if self.count else np.zeros(0, np.uint8),
            records["name"].ravel(),
            records["stream"].ravel(),
        )
        return rows.take(position < self.count)

    def names_of_blocks(self, low: int, high: int) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        """Return names and durations of all intervals from one block to another."""
        records, kept = self._blocks[low:high], slice(0, self.count - low * BLOCK)
        return records["name"].ravel()[kept], records["duration"].ravel()[kept]

    def rows_at(self, positions: NDArray[np.integer]) -> Rows:
        """Return the intervals at some positions."""
        block, place = positions // BLOCK, positions % BLOCK
        records = self._blocks[block]
        pick = np.arange(len(positions)), place
        return Rows(
            positions.astype(np.int64),
            records["first"] + records["start"][pick].astype(np.int64),
            records["duration"][pick].astype(np.int64),
            self._category[records["category"][pick]] if self.count else np.zeros(0, np.uint8),
            records["name"][pick],
            records["stream"][pick],
        )

    def started(self, time_ns: float) -> int:
        """Return how many intervals begin until a time."""
        block = int(np.searchsorted(self.first, int(np.floor(time_ns)), "right")) - 1
        if block < 0:
            return 0
        record = self._blocks[block]
        inside = int((record["start"].astype(np.int64) + int(record["first"]) <= time_ns).sum())
        return min(block * BLOCK + inside, self.count)

    def running(self, time_ns: float, inclusive: bool = False) -> Rows:
        """Return the intervals that run at a time; with *inclusive*, also those that end then."""
        low = int(np.searchsorted(self.reach, int(np.floor(time_ns)), "left" if inclusive else "right"))
        high = int(np.searchsorted(self.first, int(np.floor(time_ns)), "right"))
        ends = self.end[low:high]
        rows = self.rows_of_blocks(low + np.flatnonzero(ends >= time_ns if inclusive else ends > time_ns))
        end = rows.start_ns + rows.duration_ns
        return rows.take((rows.start_ns <= time_ns) & ((end >= time_ns) if inclusive else (end > time_ns)))

    def touching(self, start_ns: float, end_ns: float) -> int:
        """Return the number of intervals that touch a window, its ends included."""
        return self.started(end_ns) - self.started(start_ns) + len(self.running(start_ns, inclusive=True))

    def at(self, time_ns: float, slack_ns: float) -> Rows:
        """Return the shortest interval at a time, else the nearest that begins or ends within *slack_ns*, if any."""
        running = self.running(time_ns)
        if len(running):
            return running.take(np.array([int(running.duration_ns.argmin())]))
        following = self.started(time_ns)
        near = self.rows_at(np.arange(max(following - 1, 0), min(following + 1, self.count)))
        away = np.maximum(near.start_ns - time_ns, time_ns - near.start_ns - near.duration_ns)
        return near.take(np.argsort(away, kind="stable")[:1][np.sort(away)[:1] <= slack_ns])


# The time that categories cover before regular times, for views in which a pixel holds very many intervals.
#
# The finest grid has about a column per block; coarser ones keep every eighth of its times. Running sums nest, so that
# they are exact at the times of every grid, and columns of any coarser power of two are a stride.


FINER = 32
"""Columns of a grid in a pixel from which a view interpolates; an edge is then off by at most a quarter column."""
_LEAST_BLOCKS = 2048
"""Lanes with fewer blocks have no grid."""
_COARSER = 3
"""Binary logarithm of the ratio of two successive grids."""
_AT_ONCE = 8192
"""Places of a grid that are worked on at a time."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What each category covers before the multiples of 2**level ns from 0 on."""

    level: int
    cover_ns: NDArray[np.int64]
    """Shape (categories, times)."""


def make_grids(lane: Lane, allocate: Allocate = lambda kind, shape: np.empty(shape, kind)) -> list[Grid]:
    """Compute the grids of a lane, finest first."""
    blocks = len(lane.first)
    if blocks < _LEAST_BLOCKS:
        return []
    end = int(lane.reach[-1])
    level = max(0, int(np.log2(max(end, 1) / blocks)))
    count = (end >> level) + 2
    cover = allocate(np.int64, (len(lane.categories), count))
    for low in range(0, count, _AT_ONCE):
        edges = np.arange(low, min(low + _AT_ONCE, count)) << level
        cover[:, low : low + _AT_ONCE] = lane.cover(edges.astype(np.float64))
    grids = [Grid(level, cover)]
    while grids[-1].cover_ns.shape[1] > _LEAST_BLOCKS:
        finer = grids[-1]
        level = finer.level + _COARSER
        # The last time of a grid is after the end of the lane, so what it covers does not change any more.
        times = np.minimum(np.arange((end >> level) + 2) << _COARSER, finer.cover_ns.shape[1] - 1)
        kept = allocate(np.int64, (len(lane.categories), len(times)))
        kept[:] = finer.cover_ns[:, times]
        grids.append(Grid(level, kept))
    return grids


def nested_cover(lane: Lane, grids: list[Grid], level: int, first: int, count: int) -> NDArray[np.float64]:
    """Return the exact cover before the multiples *first* to *first* + *count* of 2**level ns."""
    times = first + np.arange(count + 1)
    fitting = [grid for grid in grids if grid.level <= level]
    if not fitting:
        return lane.cover((times << level).astype(np.float64))
    grid = fitting[-1]
    index = np.minimum(times << (level - grid.level), grid.cover_ns.shape[1] - 1)
    return grid.cover_ns[:, index].astype(np.float64)


def column_cover(lane: Lane, grids: list[Grid], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cover before a view's evenly spaced pixel edges, by a grid where it is fine enough, else exactly."""
    pixel = (edges[-1] - edges[0]) / max(len(edges) - 1, 1)
    fitting = [grid for grid in grids if FINER << grid.level <= pixel]
    if not fitting or edges[0] < 0:
        inside = int(np.searchsorted(edges, 0)) if fitting else len(edges)
        outside = lane.cover(edges[:inside]) if inside else np.zeros((len(lane.categories), 0))
        return outside if inside == len(edges) else np.hstack((outside, _interpolated(fitting[-1], edges[inside:])))
    return _interpolated(fitting[-1], edges)


def _interpolated(grid: Grid, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    size = 1 << grid.level
    times = np.clip(edges / size, 0, grid.cover_ns.shape[1] - 1.000001)
    index = times.astype(np.int64)
    low = grid.cover_ns[:, index]
    return low + (grid.cover_ns[:, index + 1] - low) * (times - index)
