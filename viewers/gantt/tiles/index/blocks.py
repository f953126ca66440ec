"""Index the intervals of a lane in blocks: what each category covers before a block, and where its intervals lie.

A block is one record of BLOCK intervals and all that a query at one time needs, so that it costs one page of a mapped
file. Overlaps count once: the *gain* of an interval is what it adds to the time that its category covers::

    cover before t = before - max(0, reach - t) + sum of clip(t - begin, 0, gain) over the block, begin = end - gain
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, unique

__all__ = ["BLOCK", "NEVER", "Allocate", "LaneColumns", "LaneIndex", "index_lane"]

BLOCK = 64
NEVER = -(2**60)
"""End of the intervals of a category before its first one."""
_CHUNK = 2**20
_NARROW = 2**32

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
