"""What a page draws: tiles of columns for any zoom, and the exact columns and intervals of what is on its screen."""

from __future__ import annotations

import base64
import math
from concurrent.futures import Executor, ThreadPoolExecutor
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.split import Part
from dptrace.core.intervals import Int64, unique
from dptrace.viewers.gantt.chart import OVERLAPPED, WAITING, Role
from dptrace.viewers.gantt.tiles.index import (
    Lane,
    LaneColumns,
    Rows,
    column_cover,
    index_lane,
    make_grids,
    nested_cover,
)
from dptrace.viewers.gantt.tiles.requests import (
    MAX_CELLS,
    BadRequest,
    BusyRequest,
    IntervalAtRequest,
    Message,
    RowsRequest,
    StreamsRequest,
    TilesRequest,
    ViewRequest,
    Window,
    quantized,
)
from dptrace.viewers.gantt.tiles.store import EXTRA, RECORDED, STREAM, StoredLane, TileStore

TILE = 512
"""Columns of a tile."""
_MOST = 4000
"""Intervals of a lane that are sent however short they are."""
_MARGIN = 0.5
"""Share of the view on either side whose intervals are sent, too."""
_NARROW = 2**32
"""Times below it are sent in four bytes."""


def lane_of(store: TileStore, number: int) -> StoredLane:
    """Return a lane by its number.

    Raises:
        BadRequest: there is none.
    """
    if number >= len(store.lanes):
        raise BadRequest(f"there is no lane {number}")
    return store.lanes[number]


def tiles(store: TileStore, asked: TilesRequest, pool: Executor) -> bytes:
    """Return tiles in the order asked for: number of categories, then each one and its columns."""
    if sum(max(0, last - first + 1) for _, first, last in asked.runs) * TILE > MAX_CELLS:
        raise BadRequest("there are too many tiles")
    jobs = [(lane_of(store, number), first, last) for number, first, last in asked.runs]
    return b"".join(pool.map(lambda job: _tiles_of(asked.level, *job), jobs))


def _tiles_of(level: int, stored: StoredLane, first: int, last: int) -> bytes:
    if first << level > 2**62:
        raise BadRequest("the tile is after all time")
    cover = nested_cover(stored.lane, stored.grids, level, first * TILE, (last - first + 1) * TILE)
    shares, parts = quantized(cover, 1 << level), []
    for begin in range(0, shares.shape[1], TILE):
        tile = shares[:, begin : begin + TILE]
        used = np.flatnonzero(tile.any(axis=1))
        parts.append(bytes([len(used), *(stored.lane.categories[slot] for slot in used)]) + tile[used].tobytes())
    return b"".join(parts)


def view(store: TileStore, asked: ViewRequest, pool: Executor) -> bytes:
    """Return exact columns, and intervals of the view and of half of it on either side.

    Of a lane with many intervals there, only those of at least ``shortest`` ns are sent.
    """
    message = Message()
    pixel = (asked.end - asked.start) / asked.width
    edges = asked.start + np.arange(asked.width + 1, dtype=np.float64) * pixel
    margin = _MARGIN * (asked.end - asked.start)
    column_lanes, raw_lanes = ([lane_of(store, n) for n in numbers] for numbers in (asked.columns, asked.raw))

    def columns(stored: StoredLane) -> NDArray[np.uint8]:
        return quantized(column_cover(stored.lane, stored.grids, edges), pixel)

    def raw(stored: StoredLane) -> tuple[Rows, bool]:
        return stored.lane.window(asked.start - margin, asked.end + margin, asked.shortest, _MOST)

    shares, found = pool.map(columns, column_lanes), list(pool.map(raw, raw_lanes))
    heads = []
    for number, stored, planes in zip(asked.columns, column_lanes, shares, strict=True):
        used = np.flatnonzero(planes.any(axis=1))
        message.add(planes[used], "u1")
        heads.append({"lane": number, "categories": [stored.lane.categories[slot] for slot in used]})
    rows = [
        add_rows(message, store, number, *one) | {"touching": stored.lane.touching(asked.start, asked.end)}
        for number, stored, one in zip(asked.raw, raw_lanes, found, strict=True)
    ]
    return message.encode({"columns": heads, "rows": rows, **texts_of(store, asked.raw, [one for one, _ in found])})


def add_rows(message: Message, store: TileStore, number: int, rows: Rows, every: bool) -> dict[str, Any]:
    """Append intervals to a message; return their head.

    Times are eight bytes wide where four are not enough. Further columns: of collectives their exposed time, wait,
    the rank they wait for, and the time drawn as waiting; of labels the time that their phase covers.
    """
    stored = store.lanes[number]
    start, wide = np.diff(rows.start_ns, prepend=rows.start_ns[:1]), False
    wide = bool(max(start.max(initial=0), rows.duration_ns.max(initial=0)) >= _NARROW)
    message.add(start, "<f8" if wide else "<u4")
    message.add(rows.duration_ns, "<f8" if wide else "<u4")
    message.add(rows.category, "u1")
    message.add(rows.name, "<u4")
    message.add(rows.stream, "<u2")
    message.add(np.diff(rows.position, prepend=rows.position[:1]), "<u4")
    extra: list[NDArray[Any]] = [column[rows.position] for column in stored.extra.values()]
    if stored.role == Role.PHASE_LABELS.value:
        extra.append(_label_time(store, stored, rows))
    if stored.role == Role.COLLECTIVES.value:
        extra.append(_wait_time(store, stored, rows))
    for column in extra:
        message.add(column, "<f8")
    first = (rows.start_ns[0], rows.position[0]) if len(rows) else (0, 0)
    return {
        "lane": number,
        "count": len(rows),
        "base": int(first[0]),
        "first": int(first[1]),
        "every": every,
        "wide": wide,
        "extra": len(extra),
    }


def _label_time(store: TileStore, stored: StoredLane, rows: Rows) -> NDArray[np.float64]:
    """Return the ns that each label's category covers in the phases of its track."""
    return _covered(store, stored, Role.PHASES, rows.start_ns, rows.start_ns + rows.duration_ns, rows.category)


def _wait_time(store: TileStore, stored: StoredLane, rows: Rows) -> NDArray[np.float64]:
    """Return the ns of each collective's wait that are drawn as waiting; the others are overlapped."""
    until = rows.start_ns + np.maximum(stored.extra["wait_ns"][rows.position] - 1, 0)
    return _covered(store, stored, Role.EXPOSURE, rows.start_ns, until, np.full(len(rows), WAITING))


def _covered(
    store: TileStore, stored: StoredLane, role: Role, start: Int64, end: Int64, category: NDArray[Any]
) -> NDArray[np.float64]:
    """Return the ns that a category covers between two times, for many, on a lane of the same track."""
    lane = next(one for one in store.of_role(role.value) if one.track == stored.track).lane
    times = np.concatenate((start, end)).astype(np.float64)
    order = np.argsort(times, kind="stable")
    cover = np.zeros((len(lane.categories), len(times)))
    cover[:, order] = lane.cover(times[order])
    inside = np.diff(cover.reshape(len(lane.categories), 2, -1), axis=1)[:, 0]
    known = np.isin(category, lane.categories)
    covered = np.zeros(len(start))
    if known.any():
        covered[known] = inside[np.searchsorted(lane.categories, category)[known], np.flatnonzero(known)]
    return covered


def texts_of(store: TileStore, lanes: list[int], found: list[Rows]) -> dict[str, Any]:
    """Return the names and collectives that occur in intervals, by number."""
    names, collectives = set[int](), set[int]()
    for number, rows in zip(lanes, found, strict=True):
        stored = store.lanes[number]
        if stored.role == Role.PHASE_LABELS.value:
            names |= {name - 1 for name in _used(rows.name) if name}
        elif stored.role == STREAM:
            recorded_in = stored.extra["lane"][rows.position]
            for source in _used(recorded_in):
                of_source = _used(rows.name[recorded_in == source])
                (collectives if store.lanes[source].role == Role.COLLECTIVES.value else names).update(of_source)
        elif stored.role in (Role.COLLECTIVES.value, Role.EXPOSURE.value):
            collectives |= _used(rows.name)
        elif stored.role not in (Role.PHASES.value, Role.IDLE.value):
            names |= _used(rows.name)
    return {
        "names": {name: store.names[name] for name in sorted(names)},
        "shorts": {name: store.shorts[name] for name in sorted(names) if name in store.shorts},
        "collectives": {entry: store.about.collectives[entry] for entry in sorted(collectives)},
    }


def _used(numbers: NDArray[Any]) -> set[int]:
    return set(unique(numbers).tolist())


# Exact sums over a range of time: the parts of the steps, the exposed time of each step.


def sums(store: TileStore, asked: Window) -> dict[str, Any]:
    """Return the ns of each category within a range and the steps, over all tracks, as the page's summary counts them.

    ``parts`` are those of the phases by category, ``overlapped`` overlapped communication, ``count`` the number of
    kernels, collectives and copies that touch the range.
    """
    parts, overlapped = dict[int, float](), 0.0
    for lane in store.of_role(Role.PHASES.value):
        for category, ns in within(store, lane, asked).items():
            parts[category] = parts.get(category, 0) + ns
    for lane in store.of_role(Role.EXPOSURE.value):
        overlapped += within(store, lane, asked).get(OVERLAPPED, 0)
    count = sum(stored.lane.touching(asked.start, asked.end) for stored in store.lanes if stored.role in RECORDED)
    return {"parts": parts, "overlapped": overlapped, "count": count}


def busy(store: TileStore, asked: BusyRequest) -> dict[int, float]:
    """Return the ns that each category of a lane covers in a range."""
    lane = lane_of(store, asked.lane).lane
    covered = np.diff(lane.cover(np.array([asked.start, asked.end], np.float64)))[:, 0]
    return dict(zip(lane.categories, covered.tolist(), strict=True))


def within(store: TileStore, stored: StoredLane, asked: Window) -> dict[int, float]:
    """Return the ns of each category of a lane within a range and its track's steps."""
    bounds = store.about.bounds[stored.track]
    begin, end = max(asked.start, bounds[0]), min(asked.end, bounds[-1])
    if not begin < end or not stored.lane.count:
        return {}
    covered = np.diff(stored.lane.cover(np.array([begin, end], np.float64)))[:, 0]
    return dict(zip(stored.lane.categories, covered.tolist(), strict=True))


def exposed_per_step(store: TileStore) -> list[list[float]]:
    """Return the exposed time of communication in each step of each track."""
    exposed = (int(Part.EXPOSED_COMM), WAITING)
    times = []
    for stored, bounds in zip(store.of_role(Role.PHASES.value), store.about.bounds, strict=True):
        cover = stored.lane.cover(np.array(bounds, np.float64))
        chosen = [slot for slot, category in enumerate(stored.lane.categories) if category in exposed]
        times.append(np.diff(cover[chosen].sum(axis=0)).tolist())
    return times


# Single intervals: the one under the pointer, and those that the page knows by number.


def interval_at(store: TileStore, asked: IntervalAtRequest) -> bytes:
    """Return the interval at a time of a lane, if any, and how many lie within half of the slack of it."""
    lane = lane_of(store, asked.lane).lane
    found = lane.at(asked.time, asked.slack)
    message = Message()
    head = add_rows(message, store, asked.lane, found, False)
    under = lane.touching(asked.time - asked.slack / 4, asked.time + asked.slack / 4)
    return message.encode({"rows": [head], "under": under, **texts_of(store, [asked.lane], [found])})


def rows_at(store: TileStore, asked: RowsRequest) -> bytes:
    """Return intervals by lane and position, a lane at a time; ``places`` must list the lanes one after the other."""
    message, heads, lanes, found = Message(), [], [], []
    for number in dict.fromkeys(lane for lane, _ in asked.places):
        lane = lane_of(store, number).lane
        positions = np.array(sorted({place for owner, place in asked.places if owner == number}), np.int64)
        if positions[-1] >= lane.count:
            raise BadRequest(f"lane {number} has no interval {positions[-1]}")
        lanes.append(number)
        found.append(lane.rows_at(positions))
        heads.append(add_rows(message, store, number, found[-1], False))
    return message.encode({"rows": heads, **texts_of(store, lanes, found)})


# What a served page draws first: its server puts that into the page, so that the first picture waits for no answer.


_COLUMNS = 1024
"""Columns of a view of the whole run at least; the page's smallest screen has fewer pixels, a usual one a few more."""
_MOST_LANES = 64
"""Lanes at most; more rows are seldom on a screen."""


def first_view(
    store: TileStore, layout: dict[str, Any], start: int, end: int, opening: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the tiles of the first rows for a view of the whole run, and the sums of that range.

    Args:
        layout: as ``page.data.layout`` returns it.
        start, end: the range that the page shows first, in ns since the chart's origin.
        opening: the order of its GPUs, and how many are expanded.
    """
    level = max(0, math.floor(math.log2((end - start) / _COLUMNS)))
    last = int(min(end, max(bounds[-1] for bounds in store.about.bounds))) // (TILE << level)
    runs = [(lane, 0, last) for lane in _first_lanes(store, layout, opening or {})]
    with ThreadPoolExecutor(1) as pool:
        data = tiles(store, TilesRequest(level, runs), pool)
    packed = {"level": level, "runs": runs, "data": base64.b64encode(data).decode("ascii")}
    return {"tiles": packed, "sums": sums(store, Window(start, end))}


def _first_lanes(store: TileStore, layout: dict[str, Any], opening: dict[str, Any]) -> list[int]:
    """Return the lanes that fill the first rows; a collapsed GPU shows its phases only."""
    roles = {(lane.track, lane.role): number for number, lane in reversed(list(enumerate(store.lanes)))}
    tracks = opening.get("tracks", ())
    place, expanded = {track: number for number, track in enumerate(tracks)}, tracks[: opening.get("open", 0)]
    rows = sorted(((row["track"], row["role"]) for row in layout["rows"]), key=lambda row: place.get(row[0], 0))
    shown = [row for row in rows if not layout["collapsed"] or row[1] == Role.PHASES.value or row[0] in expanded]
    return [roles[row] for row in shown if row in roles][:_MOST_LANES]


# The recorded intervals of a track by stream, as lanes that are made when a page asks for them.


_STREAM_COLUMNS = ("start_ns", "duration_ns", "category", "name", "stream")


class StreamLanes:
    """Adds lanes of streams to a store, once for each track."""

    def __init__(self, store: TileStore) -> None:
        self._store, self._lock, self._made = store, Lock(), dict[int, list[dict[str, Any]]]()

    def of(self, asked: StreamsRequest) -> list[dict[str, Any]]:
        """Return number, stream, number of intervals and categories of each lane of a track's streams."""
        if asked.track >= len(self._store.about.bounds):
            raise BadRequest(f"there is no track {asked.track}")
        with self._lock:
            if asked.track not in self._made:
                self._made[asked.track] = [self._add(lane, stream) for stream, lane in self._lanes(asked.track)]
            return self._made[asked.track]

    def _add(self, stored: StoredLane, stream: int) -> dict[str, Any]:
        self._store.lanes.append(stored)
        lane, number = stored.lane, len(self._store.lanes) - 1
        return {"lane": number, "stream": stream, "count": lane.count, "categories": list(lane.categories)}

    def _lanes(self, track: int) -> list[tuple[int, StoredLane]]:
        """Return the lanes of a track's streams; further columns say where each interval was recorded."""
        recorded = [
            (number, stored)
            for number, stored in enumerate(self._store.lanes)
            if stored.track == track and stored.role in RECORDED
        ]
        rows = [stored.lane.rows_of_blocks(np.arange(len(stored.lane.first))) for _, stored in recorded]
        column = {key: np.concatenate([getattr(one, key) for one in rows]) for key in (*_STREAM_COLUMNS, "position")}
        column["lane"] = np.repeat([number for number, _ in recorded], [len(one) for one in rows])
        for name in EXTRA:
            parts = [stored.extra.get(name, np.zeros(stored.lane.count, np.int64)) for _, stored in recorded]
            column[name] = np.concatenate(parts)
        order = np.lexsort((column["start_ns"], column["stream"]))
        cuts = np.flatnonzero(np.diff(column["stream"][order].astype(np.int64))) + 1
        lanes = []
        for part in np.split(order, cuts) if len(order) else []:
            of = {key: values[part] for key, values in column.items()}
            lane = Lane(index_lane(LaneColumns(*(of[key] for key in _STREAM_COLUMNS))))
            extra = {name: of[name].astype(np.int64) for name in (*EXTRA, "lane", "position")}
            lanes.append((int(of["stream"][0]), StoredLane(track, STREAM, lane, make_grids(lane), extra)))
        return lanes
