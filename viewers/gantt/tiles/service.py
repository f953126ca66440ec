"""Answers the requests of a served page, by name."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.viewers.gantt.chart import Role
from dptrace.viewers.gantt.tiles import answers, ranges
from dptrace.viewers.gantt.tiles.answers import StreamLanes
from dptrace.viewers.gantt.tiles.calls import calls
from dptrace.viewers.gantt.tiles.index import BLOCK, NEVER, Lane, Rows
from dptrace.viewers.gantt.tiles.requests import (
    BadRequest,
    BusyRequest,
    CallsRequest,
    IntervalAtRequest,
    NextHitRequest,
    RowsRequest,
    SearchRequest,
    StreamsRequest,
    TilesRequest,
    ViewRequest,
    Wanted,
    Window,
    decoded,
)
from dptrace.viewers.gantt.tiles.store import RECORDED, TileStore

# Search the names of kernels and collectives: how many hits there are, where they lie, and which comes next.
#
# The hits of a lane are not listed: per block their number and time are kept, so that a search costs one pass over the
# names, and everything else reads a few blocks.


_AT_ONCE = 8192
"""Blocks that are searched at once."""
_KEPT = 4
"""Texts whose hits are kept."""


@dataclass(frozen=True, slots=True)
class LaneHits:
    """The hits of a lane."""

    lane: Lane
    wanted: NDArray[np.bool_]
    """Whether each name, or category, is one."""
    before: Int64
    """Number of hits before each block, and of all."""
    time_before: Int64
    """Their time in ns."""
    reach: Int64
    """Latest end of the hits before each block, and of all."""
    field: Literal["name", "category"]
    """What *wanted* is about."""

    @property
    def count(self) -> int:
        """Number of hits."""
        return int(self.before[-1])

    def hits(self, rows: Rows) -> Rows:
        """Return those of some intervals that are hits."""
        return rows.take(self.wanted[getattr(rows, self.field)])

    def started(self, time_ns: float) -> tuple[int, int]:
        """Return number and time of the hits that begin until a time."""
        block = int(np.searchsorted(self.lane.first, int(np.floor(time_ns)), "right")) - 1
        if block < 0:
            return 0, 0
        inside = self.hits(self.lane.rows_of_blocks(np.array([block])))
        begun = inside.start_ns <= time_ns
        return int(self.before[block] + begun.sum()), int(self.time_before[block] + inside.duration_ns[begun].sum())

    def within(self, start_ns: float, end_ns: float) -> tuple[int, float]:
        """Return the number of hits that touch a range, and their time in it; hits that overlap count each."""
        over, beyond = self.hits(self.lane.running(start_ns, True)), self.hits(self.lane.running(end_ns))
        (first, time_first), (last, time_last) = self.started(start_ns), self.started(end_ns)
        cut = float((beyond.start_ns + beyond.duration_ns - end_ns).sum())
        left = float((over.start_ns + over.duration_ns - start_ns).sum())
        return last - first + len(over), time_last - time_first - cut + left

    def columns(self, edges: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return whether a hit touches each column between ascending edges."""
        whole = np.floor(edges).astype(np.int64)
        block = np.maximum(np.searchsorted(self.lane.first, whole, "right") - 1, 0)
        rows = self.lane.rows_of_blocks(np.flatnonzero(np.bincount(block)))
        hits = self.hits(rows)
        reach = np.maximum.accumulate(np.concatenate(([NEVER], hits.start_ns + hits.duration_ns)))
        # Hits of blocks in between that are not read are in the numbers before the blocks.
        begun = np.searchsorted(hits.start_ns, whole, "right")
        read = np.searchsorted(hits.position, block * BLOCK)
        number = self.before[block] + begun - read
        latest = np.maximum(self.reach[block], reach[begun])
        return np.asarray((np.diff(number) > 0) | (latest[:-1] > edges[:-1]))

    def position(self, number: int) -> int:
        """Return the position in the lane of a hit by its number among the hits."""
        block = int(np.searchsorted(self.before, number, "right")) - 1
        hits = self.hits(self.lane.rows_of_blocks(np.array([block])))
        return int(hits.position[number - self.before[block]])


def find_in(lane: Lane, wanted: NDArray[np.bool_], field: Literal["name", "category"] = "name") -> LaneHits:
    """Search a lane for names, or categories."""
    blocks = len(lane.first)
    before, time_before = np.zeros(blocks + 1, np.int64), np.zeros(blocks + 1, np.int64)
    reach = np.full(blocks + 1, NEVER)
    for low in range(0, blocks, _AT_ONCE):
        numbers = np.arange(low, min(low + _AT_ONCE, blocks))
        rows = lane.rows_of_blocks(numbers)
        hit = wanted[getattr(rows, field)]
        padded = len(numbers) * BLOCK - len(rows)
        place = slice(low + 1, low + 1 + len(numbers))
        before[place] = np.pad(hit, (0, padded)).reshape(-1, BLOCK).sum(axis=1)
        time_before[place] = np.pad(np.where(hit, rows.duration_ns, 0), (0, padded)).reshape(-1, BLOCK).sum(axis=1)
        ends = np.where(hit, rows.start_ns + rows.duration_ns, NEVER)
        reach[place] = np.pad(ends, (0, padded), constant_values=NEVER).reshape(-1, BLOCK).max(axis=1)
    return LaneHits(lane, wanted, np.cumsum(before), np.cumsum(time_before), np.maximum.accumulate(reach), field)


class Finder:
    """Searches a store, and keeps the hits of the last texts."""

    def __init__(self, store: TileStore) -> None:
        self._store, self._lock = store, Lock()
        self._found: OrderedDict[str | Wanted, dict[int, LaneHits]] = OrderedDict()
        counts = [stored.lane.count for stored in store.lanes]
        self._first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        """Number of the first interval of each lane among those of all."""

    def _hits(self, wanted: str | Wanted) -> dict[int, LaneHits]:
        """Return the lanes with hits: of a text, ignoring case, or of exactly what is wanted."""
        wanted = wanted.strip().lower() if isinstance(wanted, str) else wanted
        with self._lock:
            if wanted not in self._found:
                self._found[wanted] = self._search(wanted) if isinstance(wanted, str) else self._pick(wanted)
            self._found.move_to_end(wanted)
            while len(self._found) > _KEPT:
                self._found.popitem(last=False)
            return self._found[wanted]

    def _pick(self, wanted: Wanted) -> dict[int, LaneHits]:
        mask = np.zeros(max(len(self._store.names), len(self._store.about.collectives), 256), np.bool_)
        mask[[key for key in wanted.keys if key < len(mask)]] = True
        lanes = {i: one for i, one in enumerate(self._store.lanes) if one.role in wanted.roles and one.lane.count}
        found = {number: find_in(stored.lane, mask, wanted.field) for number, stored in lanes.items()}
        return {number: hits for number, hits in found.items() if hits.count}

    def masks(self, text: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which names, and which collectives, contain a text, ignoring case."""
        wanted, shorts = text.strip().lower(), self._store.shorts
        names = [f"{name}\n{shorts.get(number, '')}" for number, name in enumerate(self._store.names)]
        collectives = np.array([wanted in _text(entry) for entry in self._store.about.collectives] or [False])
        return np.array([wanted in name.lower() for name in names] or [False]), collectives

    def _search(self, wanted: str) -> dict[int, LaneHits]:
        kernels, collectives = self.masks(wanted)
        found = {}
        for number, stored in enumerate(self._store.lanes):
            mask = collectives if stored.role == Role.COLLECTIVES.value else kernels
            if stored.role in RECORDED and mask.any() and stored.lane.count:
                hits = find_in(stored.lane, mask)
                if hits.count:
                    found[number] = hits
        return found

    def find(self, asked: SearchRequest) -> dict[str, Any]:
        """Return the number of hits; per track those in a range; and the columns that they touch, as ranges by lane."""
        hits = self._hits(asked.wanted or asked.text)
        tracks = dict[int, list[float]]()
        for number, found in hits.items():
            sums = tracks.setdefault(self._store.lanes[number].track, [0, 0])
            for i, value in enumerate(found.within(asked.start, asked.end)):
                sums[i] += value
        edges = np.linspace(asked.start, asked.end, asked.width + 1)
        columns = {number: _runs(hits[number].columns(edges)) for number in asked.lanes if number in hits}
        total = sum(found.count for found in hits.values())
        return {"count": total, "tracks": sorted([track, *sums] for track, sums in tracks.items()), "columns": columns}

    def next(self, asked: NextHitRequest) -> dict[str, Any]:
        """Return the lane and position of the hit after an interval, or before it, and its number, from 1.

        After the last hit comes the first one.
        """
        best: tuple[int, int, int, int] | None = None
        around: tuple[int, int, int, int] | None = None
        sign, hits = (-1 if asked.direction < 0 else 1), self._hits(asked.text)
        for number, found in hits.items():
            for place, ahead in self._around(number, found, asked, sign):
                row = found.lane.rows_at(np.array([place]))
                key = (sign * int(row.start_ns[0]), sign * (int(self._first[number]) + place), number, place)
                if ahead:
                    best = key if best is None else min(best, key)
                else:
                    around = key if around is None else min(around, key)
        chosen = best or around
        if chosen is None:
            return {"hit": None}
        start, number_of = sign * chosen[0], sign * chosen[1]
        ordinal = sum(self._until(number, found, start, number_of) for number, found in hits.items())
        return {"hit": [chosen[2], chosen[3]], "ordinal": ordinal}

    def _around(self, number: int, found: LaneHits, asked: NextHitRequest, sign: int) -> list[tuple[int, bool]]:
        """Return the position of a lane's next hit, if any, and that of its first one; or the previous and the last."""
        if sign > 0:
            following = self._until(number, found, asked.start, asked.number)
            places = [(found.position(following), True)] if following < found.count else []
            return [*places, (found.position(0), False)]
        previous = self._until(number, found, asked.start, asked.number - 1) - 1
        places = [(found.position(previous), True)] if previous >= 0 else []
        return [*places, (found.position(found.count - 1), False)]

    def _until(self, number: int, found: LaneHits, start_ns: float, last: int) -> int:
        """Return how many hits of a lane begin before a time, or then and are not after the interval *last*."""
        earlier = found.started(np.ceil(start_ns) - 1)[0]
        same = found.started(start_ns)[0]
        return earlier + sum(int(self._first[number]) + found.position(hit) <= last for hit in range(earlier, same))


def _text(entry: dict[str, Any]) -> str:
    kind = entry["kind"]
    spelled = (kind, kind.replace("_", "-"), kind.replace("_", " "))
    return "\n".join((entry["name"], *spelled, entry["group"], entry.get("label", ""), entry.get("title", ""))).lower()


def _runs(columns: NDArray[np.bool_]) -> list[list[int]]:
    """Return the ranges of true columns."""
    edges = np.flatnonzero(np.diff(columns.astype(np.int8), prepend=0, append=0))
    return edges.reshape(-1, 2).tolist()


_THREADS = 2
"""NumPy lets two lanes be computed at a time; more threads gain little."""
_BYTES, _JSON = "application/octet-stream", "application/json"


class TileService:
    """Answers requests from a store; may be called from several threads."""

    def __init__(self, store: TileStore) -> None:
        pool, finder, streams = ThreadPoolExecutor(_THREADS), Finder(store), StreamLanes(store)
        self._bytes: dict[str, Callable[[bytes], bytes]] = {
            "tiles": lambda body: answers.tiles(store, decoded(body, TilesRequest), pool),
            "view": lambda body: answers.view(store, decoded(body, ViewRequest), pool),
            "at": lambda body: answers.interval_at(store, decoded(body, IntervalAtRequest)),
            "rows": lambda body: answers.rows_at(store, decoded(body, RowsRequest)),
        }
        self._json: dict[str, Callable[[bytes], Any]] = {
            "sums": lambda body: answers.sums(store, decoded(body, Window)),
            "split": lambda body: ranges.split(store, decoded(body, Window)),
            "kernels": lambda body: ranges.kernels(store, decoded(body, Window)),
            "collectives": lambda body: ranges.collectives(store, decoded(body, Window)),
            "calls": lambda body: calls(store, decoded(body, CallsRequest), finder.masks),
            "busy": lambda body: answers.busy(store, decoded(body, BusyRequest)),
            "exposed": lambda body: answers.exposed_per_step(store),
            "find": lambda body: finder.find(decoded(body, SearchRequest)),
            "streams": lambda body: streams.of(decoded(body, StreamsRequest)),
            "next": lambda body: finder.next(decoded(body, NextHitRequest)),
        }

    def answer(self, name: str, body: bytes) -> tuple[str, bytes]:
        """Return the type and the bytes of an answer.

        Raises:
            BadRequest: there is nothing of this name, or the request is not valid.
        """
        if name in self._bytes:
            return _BYTES, self._bytes[name](body)
        if name in self._json:
            return _JSON, json.dumps(self._json[name](body), separators=(",", ":")).encode()
        raise BadRequest(f"there is no {name}")
