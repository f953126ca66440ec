"""What a page draws: tiles of columns for any zoom, and the exact columns and intervals of what is on its screen."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, unique
from dptrace.viewers.gantt.chart import WAITING, Role
from dptrace.viewers.gantt.tiles.encoding import Message, quantized
from dptrace.viewers.gantt.tiles.index.grid import column_cover, nested_cover
from dptrace.viewers.gantt.tiles.index.lane import Rows
from dptrace.viewers.gantt.tiles.requests import MAX_CELLS, BadRequest, TilesRequest, ViewRequest
from dptrace.viewers.gantt.tiles.store import KINDS, STREAM, WAITS, StoredLane, TileStore

__all__ = ["TILE", "add_rows", "lane_of", "texts_of", "tiles", "view"]

TILE = 512
"""Columns of a tile."""
_MOST = 4000
"""Intervals of a lane that are sent however short they are."""
_MARGIN = 0.5
"""Share of the view on either side whose intervals are sent, too."""
_NARROW = 2**32


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
        elif stored.role not in (Role.PHASES.value, Role.IDLE.value, KINDS, WAITS):
            names |= _used(rows.name)
    return {
        "names": {name: store.names[name] for name in sorted(names)},
        "shorts": {name: store.shorts[name] for name in sorted(names) if name in store.shorts},
        "collectives": {entry: store.about.collectives[entry] for entry in sorted(collectives)},
    }


def _used(numbers: NDArray[Any]) -> set[int]:
    return set(unique(numbers).tolist())
