"""What filled the longest idle gaps of a chart: what the host did, or why the device waited for other reasons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.causes import IDLE_CAUSES
from dptrace.core.intervals import Int64
from dptrace.run.run import Run
from dptrace.timeline.model import HostActivity, main_activity
from dptrace.viewers.gantt.chart import WAITING, Chart, Lane, Role, cause_category

_MOST, _MOST_OF_GPU = 2_000, 60
"""Named gaps of a page, and of one of its GPUs, at most: the longest ones."""
_DEVICE = {cause_category(cause.name): cause.gap for cause in IDLE_CAUSES if cause.gap}
"""Causes that are not the host's."""


def named_gaps(run: Run, chart: Chart, places: Iterable[dict[str, Any] | None] = ()) -> dict[str, Any]:
    """Return the longest idle gaps of each GPU as data of the page.

    ``tracks`` has for each GPU, by its number as text, lists of a gap's start and end, the index of its name in
    ``texts``, and how much of it that took; in ns since the chart's origin.

    Args:
        places: those of findings, see ``finding_places``; their gaps are among the named ones, however short.
    """
    wanted = {(place["track"], place["gap"]) for place in places if place and "gap" in place}
    most = max(1, min(_MOST_OF_GPU, _MOST // max(len(chart.tracks), 1)))
    texts: dict[str, int] = {}
    tracks: dict[str, list[list[int]]] = {}
    for lane in chart.lanes:
        if lane.role is not Role.IDLE or not len(lane):
            continue
        host, first = run.timelines[lane.track].host, joined(lane)
        last = np.append(first[1:], len(lane)) - 1
        starts, ends = lane.start_ns[first], lane.start_ns[last] + lane.duration_ns[last]
        at = [time for track, time in wanted if track == lane.track]
        longest = np.argsort(starts - ends, kind="stable")[:most].tolist()
        for i in sorted({*longest, *(np.searchsorted(starts, at, side="right") - 1).tolist()}):
            pieces = slice(int(first[i]), int(last[i]) + 1)
            start, end = int(starts[i]), int(ends[i])
            own = chart.axes[lane.track].recorded(start, end)
            text, ns = _name(lane.category[pieces], lane.duration_ns[pieces], host, *own)
            if text:
                number = texts.setdefault(text, len(texts))
                tracks.setdefault(str(lane.track), []).append([start, end, number, ns])
    return {"texts": list(texts), "tracks": tracks}


def joined(lane: Lane) -> NDArray[np.intp]:
    """Return the first piece of each gap of a lane of idle time: pieces that touch have one cause each."""
    ends = lane.start_ns + lane.duration_ns
    return np.flatnonzero(np.append(True, lane.start_ns[1:] != ends[:-1]))


def _name(
    category: NDArray[np.uint8], duration: Int64, host: HostActivity, start_ns: int, end_ns: int
) -> tuple[str, int]:
    """Return what filled most of a gap, and how much of it; no text where the recording does not say."""
    by_category = np.bincount(category, duration, WAITING).astype(np.int64)
    largest = int(by_category.argmax())
    if largest in _DEVICE:
        return _DEVICE[largest], int(by_category[largest])
    if not len(host.start_ns):
        return "", 0
    return main_activity(host.spent(start_ns, end_ns))[1:]
