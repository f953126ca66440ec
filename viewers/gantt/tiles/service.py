"""Answers the requests of a served page, by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dptrace.viewers.gantt.tiles import answers, figures, places
from dptrace.viewers.gantt.tiles.find import Finder
from dptrace.viewers.gantt.tiles.requests import (
    BadRequest,
    BusyRequest,
    IntervalAtRequest,
    NextHitRequest,
    RowsRequest,
    SearchRequest,
    StreamsRequest,
    TilesRequest,
    ViewRequest,
    Window,
    decoded,
)
from dptrace.viewers.gantt.tiles.store import TileStore
from dptrace.viewers.gantt.tiles.streams import StreamLanes

__all__ = ["TileService"]

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
            "at": lambda body: places.interval_at(store, decoded(body, IntervalAtRequest)),
            "rows": lambda body: places.rows_at(store, decoded(body, RowsRequest)),
        }
        self._json: dict[str, Callable[[bytes], Any]] = {
            "sums": lambda body: figures.sums(store, decoded(body, Window)),
            "busy": lambda body: figures.busy(store, decoded(body, BusyRequest)),
            "exposed": lambda body: figures.exposed_per_step(store),
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
