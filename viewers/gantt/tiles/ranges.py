"""What a range of time holds, for the panel of a served page: the split of each GPU, its kernels, its collectives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.viewers.gantt.chart import OVERLAPPED, WAITING, Role
from dptrace.viewers.gantt.tiles.answers import within
from dptrace.viewers.gantt.tiles.index import BLOCK, Rows
from dptrace.viewers.gantt.tiles.requests import Window
from dptrace.viewers.gantt.tiles.store import StoredLane, TileStore

MAX_KERNELS = 200
"""Kernels that are listed by name; ``data/range.js`` lists as many."""
_AT_ONCE = 4096
"""Blocks of intervals that are read at once."""


def split(store: TileStore, asked: Window) -> list[dict[str, Any]]:
    """Return the ns of each category within a range and the steps, track by track.

    ``parts`` are those of the phases, ``overlapped`` is overlapped communication, ``causes`` are those of idle time.
    """
    tracks: list[dict[str, Any]] = [{"parts": {}, "overlapped": 0.0, "causes": {}} for _ in store.about.bounds]
    for stored in store.lanes:
        if stored.role == Role.PHASES.value:
            tracks[stored.track]["parts"] = within(store, stored, asked)
        elif stored.role == Role.EXPOSURE.value:
            tracks[stored.track]["overlapped"] = within(store, stored, asked).get(OVERLAPPED, 0)
        elif stored.role == Role.IDLE.value:
            tracks[stored.track]["causes"] = within(store, stored, asked)
    return tracks


def kernels(store: TileStore, asked: Window) -> dict[str, Any]:
    """Return the kernels and copies of a range by name, those with the most time first; what runs at once counts each.

    ``rows`` are name, number, ns and ns of the longest of each name, ``others`` how many more there are, ``total``
    number and ns of all.
    """
    count, time = np.zeros(len(store.names), np.int64), np.zeros(len(store.names))
    longest = np.zeros(len(store.names), np.int64)
    for stored in store.lanes:
        if stored.role in (Role.COMPUTE.value, Role.MEMORY.value):
            for name, ns, whole, _ in named(store, stored, asked):
                count += np.bincount(name, minlength=len(count))
                time += np.bincount(name, ns, minlength=len(time))
                np.maximum.at(longest, name, whole)
    used = np.flatnonzero(count)
    listed = used[np.argsort(-time[used], kind="stable")][:MAX_KERNELS].tolist()
    return {
        "rows": [[name, int(count[name]), float(time[name]), int(longest[name])] for name in listed],
        "others": len(used) - len(listed),
        "total": [int(count.sum()), float(time.sum())],
        "names": {name: store.names[name] for name in listed},
        "shorts": {name: store.shorts[name] for name in listed if name in store.shorts},
    }


def collectives(store: TileStore, asked: Window) -> dict[str, Any]:
    """Return the communication of a range, by collective and by kind; waiting is part of exposed.

    ``rows`` are collective, number of calls, exposed, waiting and overlapped ns, in which calls that run at once count
    each; ``kinds`` are kind and the three times, in which they count once, as in the split.
    """
    known = store.about.collectives
    calls, times = np.zeros(len(known), np.int64), np.zeros((3, len(known)))
    of_kind = np.array([entry["kind"] or "other" for entry in known])
    kinds = dict[str, NDArray[np.float64]]()
    for stored in store.of_role(Role.COLLECTIVES.value):
        for rows, _, _ in _touching(store, stored, asked):
            calls += np.bincount(rows.name, minlength=len(calls))
    for stored in store.of_role(Role.EXPOSURE.value):
        pieces = list(_touching(store, stored, asked))
        if not pieces:
            continue
        name, category = (np.concatenate([getattr(rows, key) for rows, _, _ in pieces]) for key in ("name", "category"))
        start, end = (np.concatenate([piece[place] for piece in pieces]) for place in (1, 2))
        for place, mask in enumerate((category != OVERLAPPED, category == WAITING, category == OVERLAPPED)):
            times[place] += np.bincount(name[mask], (end - start)[mask], minlength=len(known))
            for kind in set(of_kind[name[mask]].tolist()):
                mine = mask & (of_kind[name] == kind)
                kinds.setdefault(kind, np.zeros(3))[place] += _covered(start[mine], end[mine])
    used = np.flatnonzero(calls + times.sum(axis=0)).tolist()
    return {
        "rows": [[entry, int(calls[entry]), *times[:, entry].tolist()] for entry in used],
        "kinds": [[kind, *sums.tolist()] for kind, sums in sorted(kinds.items())],
        "collectives": {entry: known[entry] for entry in used},
    }


_Cut = tuple[Rows, NDArray[np.float64], NDArray[np.float64]]
"""Intervals, and where they begin and end inside a range."""


def _touching(store: TileStore, stored: StoredLane, asked: Window) -> Iterator[_Cut]:
    """Yield the intervals of a lane in a range and its track's steps."""
    for low, high, begin, end in _blocks(store, stored, asked):
        yield _cut(stored.lane.rows_of_blocks(np.arange(low, high)), begin, end)


def named(
    store: TileStore, stored: StoredLane, asked: Window
) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[np.int64] | int]]:
    """Yield the names of these intervals, their ns, those of each as a whole, and the positions, or the first of them.

    Of blocks that lie in the range, nothing else is read.
    """
    lane = stored.lane
    for low, high, begin, end in _blocks(store, stored, asked):
        if lane.first[low] >= begin and lane.end[low:high].max() <= end:
            name, ns = lane.names_of_blocks(low, high)
            yield name, ns, ns, low * BLOCK
        else:
            rows, start, stop = _cut(lane.rows_of_blocks(np.arange(low, high)), begin, end)
            yield rows.name, stop - start, rows.duration_ns, rows.position


def _blocks(store: TileStore, stored: StoredLane, asked: Window) -> Iterator[tuple[int, int, float, float]]:
    """Yield the blocks of a lane that a range needs, some thousand at a time, and its ends within the track's steps."""
    bounds, lane = store.about.bounds[stored.track], stored.lane
    begin, end = max(asked.start, bounds[0]), min(asked.end, bounds[-1])
    low = int(np.searchsorted(lane.reach, int(np.floor(begin)), "left"))
    high = int(np.searchsorted(lane.first, int(np.ceil(end)), "left"))
    for first in range(low, high if begin < end else low, _AT_ONCE):
        yield first, min(first + _AT_ONCE, high), begin, end


def _cut(rows: Rows, begin: float, end: float) -> _Cut:
    stop = rows.start_ns + rows.duration_ns
    inside = (rows.start_ns < end) & ((stop > begin) | (rows.start_ns >= begin))
    return rows.take(inside), np.maximum(rows.start_ns[inside], begin), np.minimum(stop[inside], end)


def _covered(start: NDArray[np.float64], end: NDArray[np.float64]) -> float:
    """Return the time that intervals in order of their starts cover, with overlaps counted once."""
    reach = np.maximum.accumulate(np.concatenate(([-np.inf], end)))[:-1]
    return float(np.maximum(0, end - np.maximum(start, reach)).sum())
