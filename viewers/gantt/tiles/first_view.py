"""What a served page draws first: its server puts that into the page, so that the first picture waits for no answer."""

from __future__ import annotations

import base64
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dptrace.viewers.gantt.chart import Role
from dptrace.viewers.gantt.tiles.answers import TILE, tiles
from dptrace.viewers.gantt.tiles.figures import sums
from dptrace.viewers.gantt.tiles.requests import TilesRequest, Window
from dptrace.viewers.gantt.tiles.store import TileStore

__all__ = ["first_view"]

_COLUMNS = 1024
"""Columns of a view of the whole run at least; the page's smallest screen has fewer pixels, a usual one a few more."""
_MOST_LANES = 64
"""Lanes at most; more rows are seldom on a screen."""


def first_view(store: TileStore, layout: dict[str, Any], start: int, end: int) -> dict[str, Any]:
    """Return the tiles of the first rows for a view of the whole run, and the sums of that range.

    Args:
        layout: as ``page.data.layout`` returns it.
        start, end: the range that the page shows first, in ns since the chart's origin.
    """
    level = max(0, math.floor(math.log2((end - start) / _COLUMNS)))
    last = int(min(end, max(bounds[-1] for bounds in store.about.bounds))) // (TILE << level)
    runs = [(lane, 0, last) for lane in _first_lanes(store, layout)]
    with ThreadPoolExecutor(1) as pool:
        data = tiles(store, TilesRequest(level, runs), pool)
    packed = {"level": level, "runs": runs, "data": base64.b64encode(data).decode("ascii")}
    return {"tiles": packed, "sums": sums(store, Window(start, end))}


def _first_lanes(store: TileStore, layout: dict[str, Any]) -> list[int]:
    """Return the lanes that fill the first rows; a collapsed GPU shows its phases only."""
    roles = {(lane.track, lane.role): number for number, lane in reversed(list(enumerate(store.lanes)))}
    rows = [(row["track"], row["role"]) for row in layout["rows"]]
    shown = [row for row in rows if not layout["collapsed"] or row[1] == Role.PHASES.value]
    return [roles[row] for row in shown if row in roles][:_MOST_LANES]
