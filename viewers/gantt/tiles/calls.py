"""The recorded intervals of a range as a list, and how long they are, for the panel of a served page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dptrace.viewers.gantt.chart import Role
from dptrace.viewers.gantt.tiles.index import Rows
from dptrace.viewers.gantt.tiles.ranges import named
from dptrace.viewers.gantt.tiles.requests import CallsRequest
from dptrace.viewers.gantt.tiles.store import RECORDED, StoredLane, TileStore

MOST, CLASSES = 200, 16
"""Intervals that are listed, and classes of a duration for each of its doublings; ``data/calls.js`` has the same."""
MAX_SEARCHED = 20_000_000
"""Intervals of a range that are put into order; of one kernel, any number."""

_Mask: TypeAlias = NDArray[np.bool_]
_Place: TypeAlias = tuple[float, int, int]
"""What an interval is sorted by, its lane and its position."""


def calls(store: TileStore, asked: CallsRequest, masks: Callable[[str], tuple[_Mask, _Mask]]) -> dict[str, Any]:
    """Return the intervals of a range, of one kernel or with a text in their names.

    ``total`` is their number, ``classes`` how many are in each class of durations, ``extremes`` the least and the
    longest duration, ``places`` lane and position of the first ones in the order that is asked for; without any where
    there are too many.

    Args:
        masks: returns which names, and which collectives, have a text.
    """
    lanes = [(number, one) for number, one in enumerate(store.lanes) if one.role in RECORDED and one.lane.count]
    if asked.kernel >= 0:
        lanes = [(number, one) for number, one in lanes if one.role != Role.COLLECTIVES.value]
        names = np.arange(max(len(store.names), 1)) == asked.kernel
    else:
        total = sum(one.lane.touching(asked.start, asked.end) for _, one in lanes)
        if total > MAX_SEARCHED:
            return {"total": total, "classes": [], "extremes": [], "places": []}
        names, of_collectives = masks(asked.text) if asked.text else (None, None)
    order = _order(store) if asked.by == "name" else None
    count, classes, first = 0, np.zeros(64 * CLASSES, np.int64), list[_Place]()
    extremes: list[int] = []
    for number, stored in lanes:
        collective = stored.role == Role.COLLECTIVES.value
        position, duration = _chosen(store, stored, asked, of_collectives if collective else names)
        count += len(position)
        if len(duration):
            ends = *extremes, int(duration.min()), int(duration.max())
            extremes = [min(ends), max(ends)]
        classes += np.bincount((CLASSES * np.log2(np.maximum(duration, 1))).astype(np.intp), minlength=len(classes))
        first = _merged(first, _first(stored, number, position, duration, asked, order))
    used = np.flatnonzero(classes).tolist()
    return {
        "total": count,
        "classes": [[size, int(classes[size])] for size in used],
        "extremes": extremes,
        "places": [[lane, place] for _, lane, place in first],
    }


def _chosen(
    store: TileStore, stored: StoredLane, asked: CallsRequest, mask: _Mask | None
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return positions and durations of the intervals of a lane that are in the range, and wanted."""
    positions, durations = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for name, _, duration, place in named(store, stored, asked):
        kept = np.arange(len(name)) if mask is None else np.flatnonzero(mask[name])
        positions.append(place + kept if isinstance(place, int) else place[kept])
        durations.append(duration[kept].astype(np.int64))
    return np.concatenate(positions), np.concatenate(durations)


def _first(
    stored: StoredLane,
    number: int,
    position: NDArray[np.int64],
    duration: NDArray[Any],
    asked: CallsRequest,
    order: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
) -> list[_Place]:
    """Return the first intervals of a lane in the order that is asked for."""
    sign = -1 if asked.down else 1
    if order is not None:
        texts = order[stored.role == Role.COLLECTIVES.value]
        key = texts[np.concatenate([*_names(stored, position), np.zeros(0, np.int64)]).astype(np.intp)]
    else:
        key = {"start": position, "duration": duration, "rank": np.full(len(position), stored.track)}[asked.by]
    ranked = np.argsort(sign * key, kind="stable")[:MOST]
    if asked.by != "start":
        return [(sign * float(k), number, p) for k, p in zip(key[ranked], position[ranked].tolist(), strict=True)]
    starts = stored.lane.rows_at(position[ranked]).start_ns
    return [(sign * float(k), number, p) for k, p in zip(starts, position[ranked].tolist(), strict=True)]


def _names(stored: StoredLane, position: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return the names of the intervals at some positions, some thousand at a time."""
    parts: list[Rows] = [stored.lane.rows_at(part) for part in np.split(position, range(4096, len(position), 4096))]
    return [rows.name for rows in parts]


def _merged(one: list[_Place], other: list[_Place]) -> list[_Place]:
    return sorted((*one, *other), key=lambda place: place[0])[:MOST]


def _order(store: TileStore) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the place of each name in the order of all, and of each collective."""
    names = [store.shorts.get(number, name).lower() for number, name in enumerate(store.names)]
    titles = [_title(entry).lower() for entry in store.about.collectives]
    place = np.empty(len(names) + len(titles), np.int64)
    place[np.argsort(np.array([*names, *titles, ""]), kind="stable")[1:]] = np.arange(len(place))
    return place[: len(names)], place[len(names) :]


def _title(entry: dict[str, Any]) -> str:
    """Return what the page calls a collective, without its size."""
    kind = entry["kind"] if entry["kind"] != "other" else ""
    return str(entry.get("title") or kind or entry.get("short", entry["name"]))
