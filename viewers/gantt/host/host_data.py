"""The host rows of all GPUs, within the size of a page; and the answers to a served page that asks for them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from dptrace.core.units import duration, plural
from dptrace.run.notable_ranks import notable_ranks
from dptrace.run.run import Run
from dptrace.timeline.host_calls import HOST_CALLS
from dptrace.viewers.gantt.chart import Chart
from dptrace.viewers.gantt.host.looks import kind_looks
from dptrace.viewers.gantt.host.track_data import track_data, window_data

__all__ = ["MOST_CALLS", "MOST_TRACKS", "HostAnswers", "host_data", "host_notes"]

MOST_CALLS, MOST_CALLS_OF_LARGE = 300_000, 60_000
"""Host calls of a page in one file at most, some 2 MB; of a large one, which a million kernels fill already."""
LARGE = 500_000
"""Intervals above which a page is large."""
MOST_TRACKS = 16
"""GPUs of a page in one file whose host's calls it holds: the most notable ones."""
_MOST_INTERVALS = 1_000_000
"""Intervals of these GPUs at most, since the calls behind them are read from the files once more."""
MOST_SERVED = 300_000
"""Host calls in one answer of a server; a page asks again for what it shows when it is zoomed."""


def host_data(run: Run, chart: Chart) -> dict[str, Any]:
    """Return the host rows of a page in one file: ``tracks``, the data of each GPU that has any, by its number."""
    tracks, large = _chosen(run), len(chart) > LARGE
    most = (MOST_CALLS_OF_LARGE if large else MOST_CALLS) // max(len(tracks), 1)
    found = {}
    for track in sorted(tracks):
        timeline = run.timelines[track]
        calls = run.read_again(timeline, HOST_CALLS)
        found[str(track)] = track_data(timeline, calls, chart, most, launches=not large)
    return {"kinds": kind_looks(), "tracks": found}


def host_notes(run: Run, data: dict[str, Any]) -> list[str]:
    """Describe what a page in one file leaves out."""
    tracks, calls = data["tracks"], [one["calls"] for one in data["tracks"].values() if "calls" in one]
    notes = []
    if left_out := sum(one["leftOut"] for one in calls):
        shortest, total = max(one["shortest"] for one in calls), sum(one["total"] for one in calls)
        notes.append(
            f"The host's rows leave out {left_out:,} of {total:,} calls, all shorter than {duration(shortest)}; "
            "--serve, or fewer --ranks or --steps, shows them."
        )
    if calls and not any("launches" in one for one in tracks.values()):
        notes.append("This page is too large to hold what launched each kernel; --serve shows it.")
    if calls and len(tracks) < len(run.timelines):
        ranks = ", ".join(dict.fromkeys(str(run.timelines[int(track)].rank) for track in tracks))
        notes.append(
            f"The host's rows are those of {plural(len(tracks), 'GPU')} of {len(run.timelines)} (rank {ranks}); "
            "--serve, or --ranks, shows others."
        )
    return notes


def _chosen(run: Run) -> list[int]:
    """Return the GPUs with host rows, the most notable first."""
    tracks = [notable.index for notable in notable_ranks(run)] if len(run.timelines) > 1 else [0]
    size = np.cumsum([len(run.timelines[track]) for track in tracks])
    return tracks[: max(1, min(MOST_TRACKS, int(np.searchsorted(size, _MOST_INTERVALS, side="right"))))]


@dataclass(frozen=True, slots=True)
class HostAnswers:
    """Answers a served page's requests for host rows."""

    run: Run
    chart: Chart
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False)
    """Requests arrive in threads of their own; a file is read once for all."""

    def __call__(self, request: str) -> bytes | None:
        """Answer ``TRACK``, or ``TRACK/FROM/TO`` for the calls of a window in ns; None if the request is not valid."""
        try:
            track, *window = map(int, request.split("/"))
        except ValueError:
            return None
        if not 0 <= track < len(self.run.timelines) or len(window) not in (0, 2):
            return None
        timeline = self.run.timelines[track]
        with self._lock:
            calls = self.run.read_again(timeline, HOST_CALLS)
        if not window or calls is None:
            return msgspec.json.encode(track_data(timeline, calls, self.chart, MOST_SERVED))
        return msgspec.json.encode(window_data(timeline, calls, self.chart, MOST_SERVED, (window[0], window[1])))
