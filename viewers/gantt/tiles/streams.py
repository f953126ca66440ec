"""The recorded intervals of a track by stream, as lanes that are made when a page asks for them."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np

from dptrace.viewers.gantt.tiles.index.blocks import LaneColumns, index_lane
from dptrace.viewers.gantt.tiles.index.grid import make_grids
from dptrace.viewers.gantt.tiles.index.lane import Lane
from dptrace.viewers.gantt.tiles.requests import BadRequest, StreamsRequest
from dptrace.viewers.gantt.tiles.store import EXTRA, RECORDED, STREAM, StoredLane, TileStore

__all__ = ["StreamLanes"]

_COLUMNS = ("start_ns", "duration_ns", "category", "name", "stream")


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
        column = {key: np.concatenate([getattr(one, key) for one in rows]) for key in (*_COLUMNS, "position")}
        column["lane"] = np.repeat([number for number, _ in recorded], [len(one) for one in rows])
        for name in EXTRA:
            parts = [stored.extra.get(name, np.zeros(stored.lane.count, np.int64)) for _, stored in recorded]
            column[name] = np.concatenate(parts)
        order = np.lexsort((column["start_ns"], column["stream"]))
        cuts = np.flatnonzero(np.diff(column["stream"][order].astype(np.int64))) + 1
        lanes = []
        for part in np.split(order, cuts) if len(order) else []:
            of = {key: values[part] for key, values in column.items()}
            lane = Lane(index_lane(LaneColumns(*(of[key] for key in _COLUMNS))))
            extra = {name: of[name].astype(np.int64) for name in (*EXTRA, "lane", "position")}
            lanes.append((int(of["stream"][0]), StoredLane(track, STREAM, lane, make_grids(lane), extra)))
        return lanes
