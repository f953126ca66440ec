"""Ask a lane's index: the time that each category covers, the intervals in a window, and the one at a place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.viewers.gantt.tiles.index.blocks import BLOCK, LaneIndex

__all__ = ["Lane", "Rows"]

_PLACES = np.arange(BLOCK)


@dataclass(frozen=True, slots=True)
class Rows:
    """Some intervals of a lane in the order of their starts."""

    position: Int64
    """Number of each interval in its lane."""
    start_ns: Int64
    duration_ns: Int64
    category: NDArray[np.uint8]
    name: NDArray[np.integer]
    stream: NDArray[np.integer]

    def __len__(self) -> int:
        return len(self.position)

    def chosen(self, index: NDArray[Any]) -> Rows:
        """Return some of these intervals, by mask or positions."""
        return Rows(
            self.position[index],
            self.start_ns[index],
            self.duration_ns[index],
            self.category[index],
            self.name[index],
            self.stream[index],
        )


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
        return rows.chosen(kept if all_of_them else kept & (rows.duration_ns >= shortest_ns)), all_of_them

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
        return rows.chosen(position < self.count)

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
        return rows.chosen((rows.start_ns <= time_ns) & ((end >= time_ns) if inclusive else (end > time_ns)))

    def touching(self, start_ns: float, end_ns: float) -> int:
        """Return the number of intervals that touch a window, its ends included."""
        return self.started(end_ns) - self.started(start_ns) + len(self.running(start_ns, inclusive=True))

    def at(self, time_ns: float, slack_ns: float) -> Rows:
        """Return the shortest interval at a time, else the nearest that begins or ends within *slack_ns*, if any."""
        running = self.running(time_ns)
        if len(running):
            return running.chosen(np.array([int(running.duration_ns.argmin())]))
        following = self.started(time_ns)
        near = self.rows_at(np.arange(max(following - 1, 0), min(following + 1, self.count)))
        away = np.maximum(near.start_ns - time_ns, time_ns - near.start_ns - near.duration_ns)
        return near.chosen(np.argsort(away, kind="stable")[:1][np.sort(away)[:1] <= slack_ns])
