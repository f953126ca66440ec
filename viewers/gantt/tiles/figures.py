"""Exact sums over a range of time: the parts of the steps, communication by kind, the exposed time of each step."""

from __future__ import annotations

from typing import Any

import numpy as np

from dptrace.analysis.per_gpu.split import Part
from dptrace.viewers.gantt.chart import OVERLAPPED, WAITING, Role
from dptrace.viewers.gantt.tiles.answers import lane_of
from dptrace.viewers.gantt.tiles.requests import BusyRequest, Window
from dptrace.viewers.gantt.tiles.store import KINDS, RECORDED, WAITS, StoredLane, TileStore

__all__ = ["busy", "exposed_per_step", "sums"]


def sums(store: TileStore, asked: Window) -> dict[str, Any]:
    """Return the ns of each category within a range and the steps, over all tracks, as the page's summary counts them.

    ``parts`` are those of the phases by category, ``overlapped`` overlapped communication, ``kinds`` the exposed,
    waiting and overlapped time of each kind of collective, ``count`` the number of kernels, collectives and copies that
    touch the range.
    """
    parts, overlapped = dict[int, float](), 0.0
    for lane in store.of_role(Role.PHASES.value):
        for category, ns in _within(store, lane, asked).items():
            parts[category] = parts.get(category, 0) + ns
    for lane in store.of_role(Role.EXPOSURE.value):
        overlapped += _within(store, lane, asked).get(OVERLAPPED, 0)
    kinds = [{"kind": kind, "exposed": 0.0, "waiting": 0.0, "overlapped": 0.0} for kind in store.about.kinds]
    for lane in store.of_role(KINDS):
        for category, ns in _within(store, lane, asked).items():
            kinds[category // 2]["overlapped" if category % 2 else "exposed"] += ns  # type: ignore[operator]
    for lane in store.of_role(WAITS):
        for category, ns in _within(store, lane, asked).items():
            kinds[category]["waiting"] += ns  # type: ignore[operator]
    count = sum(stored.lane.touching(asked.start, asked.end) for stored in store.lanes if stored.role in RECORDED)
    used = [kind for kind in kinds if kind["exposed"] or kind["overlapped"]]
    return {"parts": parts, "overlapped": overlapped, "kinds": used, "count": count}


def busy(store: TileStore, asked: BusyRequest) -> dict[int, float]:
    """Return the ns that each category of a lane covers in a range."""
    lane = lane_of(store, asked.lane).lane
    covered = np.diff(lane.cover(np.array([asked.start, asked.end], np.float64)))[:, 0]
    return dict(zip(lane.categories, covered.tolist(), strict=True))


def _within(store: TileStore, stored: StoredLane, asked: Window) -> dict[int, float]:
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
