"""The host rows of all GPUs, within the size of a page; and the answers to a served page that asks for them."""

from __future__ import annotations

import base64
import gzip
import threading
from collections.abc import Collection
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, unique
from dptrace.core.units import duration, plural
from dptrace.run.notable_ranks import notable_ranks
from dptrace.run.run import Run
from dptrace.timeline.host_calls import HOST_CALLS, CallKind, Flame, HostCalls
from dptrace.timeline.model import HOST_CAUSE_WORDS, HostActivity, HostCause, Kind, Timeline
from dptrace.viewers.gantt.chart import Axis, Chart, axes_of
from dptrace.viewers.gantt.packing import differences, pack

_NONE = np.zeros(0, np.int64)


# The host calls of some threads in a window of time: the longest ones, as many as fit, and how many are left out.
#
# Calls nest, so that a call is at least as long as those inside it: leaving out the short ones keeps the nesting.


@dataclass(frozen=True, slots=True)
class Level:
    """The calls of one thread, flame and depth: none of them overlap."""

    thread: int
    flame: int
    depth: int
    count: int


@dataclass(frozen=True, slots=True)
class CallsWindow:
    """Host calls of a window."""

    index: Int64
    """Indices into the host calls, sorted by level, then start."""
    levels: tuple[Level, ...]
    """The levels that hold them, in order."""
    left_out: int
    """Calls of the window that are not among them."""
    shortest_ns: int
    """No call of this length or longer is left out; 0 if none is."""


def calls_window(
    calls: HostCalls, threads: Collection[int], start_ns: int, end_ns: int, most: int, launching: Int64 = _NONE
) -> CallsWindow:
    """Return the calls of *threads* that touch a window, the longest *most* at most.

    Args:
        threads: indices into ``calls.threads``.
        start_ns, end_ns: in the time of the trace.
        launching: indices of calls that count as well, wherever they are, with what is around them.
    """
    wanted = (calls.start_ns < end_ns) & (calls.end_ns > start_ns)
    wanted[_with_surroundings(calls, launching)] = True
    inside = np.flatnonzero(wanted & np.isin(calls.thread, list(threads)))
    length = calls.end_ns[inside] - calls.start_ns[inside]
    shortest = _limit(length, most)
    kept = inside[length >= shortest]
    key = _level_key(calls, kept)
    order = np.argsort(key, kind="stable")
    keys, count = np.unique(key, return_counts=True)
    depths = _depths(calls)
    levels = tuple(
        Level(level // depths // len(Flame), level // depths % len(Flame), level % depths, number)
        for level, number in zip(keys.tolist(), count.tolist(), strict=True)
    )
    return CallsWindow(kept[order], levels, len(inside) - len(kept), shortest)


def _with_surroundings(calls: HostCalls, index: Int64) -> Int64:
    """Return some calls, the calls around each, and the labels and Python functions that run where one begins."""
    found, more = index, index
    while len(more):
        above = calls.parent[more].astype(np.int64)
        more = np.setdiff1d(above[above >= 0], found)
        found = np.concatenate((found, more))
    others = np.flatnonzero(calls.flame != Flame.CALLS)
    begun = np.sort(calls.start_ns[index])
    first = np.searchsorted(begun, calls.start_ns[others], side="left")
    beyond = np.searchsorted(begun, calls.end_ns[others], side="right")
    return np.concatenate((found, others[first < beyond]))


def _limit(length: Int64, most: int) -> int:
    """Return the least length of which at most *most* calls are, or are longer; 0 where all fit."""
    if len(length) <= most:
        return 0
    longest = np.sort(length)[::-1]
    # Calls of one length stay or go together.
    return int(longest[most]) + 1


def _depths(calls: HostCalls) -> int:
    return int(calls.depth.max(initial=0)) + 1


def _level_key(calls: HostCalls, index: Int64) -> NDArray[np.int64]:
    flame = calls.thread[index].astype(np.int64) * len(Flame) + calls.flame[index]
    return flame * _depths(calls) + calls.depth[index]


# The data of one GPU's host rows, for the page: its threads' calls, what launched its kernels, what delayed it.
#
# A page in one file holds it for its GPUs; a served page asks for it, GPU by GPU and window by window.


KINDS = (Kind.COMPUTE, Kind.COMMUNICATION, Kind.MEMORY)
"""The order of a GPU's intervals in the columns of launches."""
MOST_THREADS = 6
"""Threads of a GPU with rows at most: those that launched most."""
MOST_NAMED = 50
"""Names that a search finds at most."""


def track_data(
    timeline: Timeline, calls: HostCalls | None, axis: Axis, most: int, launches: bool = True
) -> dict[str, Any]:
    """Return the host rows of one GPU as data of the page.

    Args:
        calls: the host calls of its rank; None where they can't be read.
        most: number of calls at most.
        launches: include what launched each interval.
    """
    data: dict[str, Any] = {"activity": _activity(timeline.host, axis), "threads": []}
    if calls is None or not len(calls):
        return data | ({"unread": True} if calls is None else {})
    device = _drawn(timeline, calls, axis)
    threads = threads_of(calls, device)
    if launches:
        detail, used = _numbered(calls.device_detail[device[device >= 0]])
        data["launches"] = _launch_columns(calls, device, axis, threads, detail)
        data["details"] = _packed_texts([astuple(calls.details[i]) for i in used])
    data["threads"] = [calls.threads[thread] for thread in threads]
    return data | _calls_data(calls, axis, most, (0, axis.length_ns), threads, _launching(calls, device))


def window_data(timeline: Timeline, calls: HostCalls, axis: Axis, most: int, window: tuple[int, int]) -> dict[str, Any]:
    """Return the calls of a GPU's host rows in a window of time, the longest *most* at most.

    Args:
        window: since the chart's origin.
    """
    return _calls_data(calls, axis, most, window, threads_of(calls, _drawn(timeline, calls, axis)))


def named_calls(timeline: Timeline, calls: HostCalls, axis: Axis, text: str) -> list[list[Any]]:
    """Return the calls of a GPU's host rows whose names contain a text, by name, most time first.

    Each is name, number, time, thread, flame, depth, start and length, the last five of the longest; times in ns.
    """
    threads = threads_of(calls, _drawn(timeline, calls, axis))
    wanted = np.array([text.lower() in name.lower() for name in calls.names] or [False])
    mine = wanted[calls.name] & np.isin(calls.thread, threads) & axis.inside(calls.start_ns, calls.end_ns)
    index = np.flatnonzero(mine)
    length = calls.end_ns[index] - calls.start_ns[index]
    number, names = _numbered(calls.name[index])
    # Of each name, the last one is the longest, and of several such the first.
    order = np.lexsort((-calls.start_ns[index], length, number))
    count, time = np.bincount(number), np.bincount(number, length)
    longest = order[np.cumsum(count) - 1]
    rows = []
    for name in np.argsort(-time, kind="stable")[:MOST_NAMED].tolist():
        call, ns = int(index[longest[name]]), int(length[longest[name]])
        place = [threads.index(int(calls.thread[call])), int(calls.flame[call]), int(calls.depth[call])]
        start = int(axis.since(calls.start_ns[call : call + 1])[0])
        rows.append([calls.names[names[name]], int(count[name]), int(time[name]), *place, start, ns])
    return rows


def _calls_data(
    calls: HostCalls, axis: Axis, most: int, window: tuple[int, int], threads: list[int], launching: Int64 = _NONE
) -> dict[str, Any]:
    begin, end = axis.recorded(*window)
    found = calls_window(calls, threads, begin, end, most, launching)
    name, names = _numbered(calls.name[found.index])
    detail, details = _numbered(calls.detail[found.index])
    place = {thread: i for i, thread in enumerate(threads)}
    firsts = axis.since(calls.start_ns[found.index[_begins(found)]])
    return {
        "calls": {
            # Each level has the time of its first call; the others follow as differences.
            "levels": [
                [place[level.thread], level.flame, level.depth, level.count, first]
                for level, first in zip(found.levels, firsts.tolist(), strict=True)
            ],
            "columns": _call_columns(calls, found, axis, name, detail),
            "names": _packed_texts([calls.names[i] for i in names]),
            "details": _packed_texts([astuple(calls.details[i]) for i in details]),
            "window": [*window],
            "total": len(found.index) + found.left_out,
            "leftOut": found.left_out,
            "shortest": found.shortest_ns,
        }
    }


def _drawn(timeline: Timeline, calls: HostCalls, axis: Axis) -> Int64:
    """Return the places of a GPU's drawn intervals in the columns ``device_…``, or -1."""
    of_kind = axis.drawn(timeline)
    drawn = np.concatenate([of_kind[kind] for kind in KINDS])
    places: Int64 = calls.device_index(timeline)[drawn]
    return places


def threads_of(calls: HostCalls, device: Int64) -> list[int]:
    """Return the threads whose rows are shown, the training loop's first.

    Args:
        device: places of a GPU's intervals in the columns ``device_…``, or -1.
    """
    launched = np.bincount(calls.thread[_launching(calls, device)], minlength=len(calls.threads))
    main = [thread for thread, name in enumerate(calls.threads) if name == "main"]
    others = [thread for thread in np.argsort(-launched, kind="stable").tolist() if launched[thread]]
    return list(dict.fromkeys([*main, *others]))[:MOST_THREADS]


def _launching(calls: HostCalls, device: Int64) -> Int64:
    """Return the calls that launched a GPU's drawn intervals, one per interval; the first may begin before the chart.

    Args:
        device: places of these intervals in the columns ``device_…``, or -1.
    """
    launch = calls.device_call[device[device >= 0]].astype(np.int64)
    return launch[launch >= 0]


def _begins(found: CallsWindow) -> Int64:
    """Return the position of each level's first call."""
    return np.cumsum([0, *(level.count for level in found.levels)])[:-1]


def _call_columns(calls: HostCalls, found: CallsWindow, axis: Axis, name: Int64, detail: Int64) -> dict[str, Any]:
    index = found.index
    start = calls.start_ns[index]
    delta = np.diff(axis.since(start), prepend=0)
    delta[_begins(found)] = 0
    columns = {"delta": delta, "duration": calls.end_ns[index] - start, "kind": calls.kind[index].astype(np.int64)}
    columns |= {"name": name, "detail": detail}
    return {key: pack(column) for key, column in columns.items()}


def _launch_columns(calls: HostCalls, device: Int64, axis: Axis, threads: list[int], detail: Int64) -> dict[str, Any]:
    """Return for each interval of a GPU what launched it: start, length, thread, id; and the interval's details.

    Length, thread, id and details are plus 1, and 0 where they are unknown. Starts and ids are differences.
    """
    found = device >= 0
    call = np.where(found, calls.device_call[device], -1)
    known = call >= 0
    # Where it is unknown, that of the interval before, so that the difference is small.
    last = np.maximum.accumulate(np.where(known, np.arange(len(call)), -1))
    start = np.where(last < 0, 0, axis.since(calls.start_ns[call[last]]))
    shown = np.isin(calls.thread[call], threads) & known
    order = np.argsort(threads)
    place = order[np.minimum(np.searchsorted(np.sort(threads), calls.thread[call]), len(threads) - 1)]
    # Ids count up in the order of launches, and so do kernels on a stream: their differences are small.
    correlation = np.where(found, calls.device_correlation[device], -1) + 1
    details = np.zeros(len(device), np.int64)
    details[found] = detail + 1
    columns = {
        "start": differences(start),
        "length": np.where(known, calls.end_ns[call] - calls.start_ns[call] + 1, 0),
        "thread": np.where(shown, place + 1, 0),
        "correlation": differences(correlation),
        "detail": details,
    }
    return {key: pack(column) for key, column in columns.items()}


def _numbered(column: NDArray[Any]) -> tuple[Int64, list[int]]:
    """Number the distinct values of a column from 0; return the numbers and the values."""
    values = unique(column)
    return np.searchsorted(values, column), values.tolist()


def _packed_texts(texts: list[Any]) -> str:
    """Return texts as JSON, compressed, in base64: those of a rank repeat each other."""
    return base64.b64encode(gzip.compress(msgspec.json.encode(texts), 6, mtime=0)).decode("ascii")


def _activity(host: HostActivity, axis: Axis) -> dict[str, Any]:
    """Return the pieces of what the host did, from the idle analysis: ascending starts, an end, and a label each."""
    none = np.empty(0, np.int64)
    start, end, label = host.cut(*axis.recorded(0, axis.length_ns)) if len(host.start_ns) else (none, none, none)
    number, used = _numbered(label)
    return {
        "words": [HOST_CAUSE_WORDS[cause] for cause in HostCause],
        "labels": [[host.labels[i].cause, host.labels[i].what, host.labels[i].where] for i in used],
        "delta": pack(np.diff(axis.since(start), prepend=0)),
        "label": pack(number),
        "end": int(axis.since(end[-1])) if len(end) else 0,
    }


# Names and colors of host events by kind; allocator calls and synchronization stand out.


_LOOKS: dict[CallKind, tuple[str, str, str, str, str]] = {
    CallKind.OPERATOR: ("Operator", "#7C8DA6", "#0B1220", "#5F7391", "#FFFFFF"),
    CallKind.RUNTIME: ("Runtime call", "#35757C", "#FFFFFF", "#5BA3AB", "#06181A"),
    CallKind.ALLOCATOR: ("Allocator call", "#B84E14", "#FFFFFF", "#E8843F", "#2B1600"),
    CallKind.SYNCHRONIZING: ("Synchronization", "#A3197F", "#FFFFFF", "#E06BC4", "#24041C"),
    CallKind.ANNOTATION: ("Annotation", "#5A5FB0", "#FFFFFF", "#8F95E8", "#0B0D2E"),
    CallKind.MODULE: ("Module", "#7A5CA8", "#FFFFFF", "#B49BE0", "#1A0D33"),
    CallKind.PYTHON: ("Python function", "#6B7280", "#FFFFFF", "#8A94A3", "#10141A"),
}
"""Label; color and color of text on it, on a light page, then on a dark one."""


def kind_looks() -> list[dict[str, Any]]:
    """Return label and colors of each kind, in the order of :class:`CallKind`, as data of the page."""
    return [
        {"label": label, "color": color, "ink": ink, "dark": {"color": dark, "ink": dark_ink}}
        for label, color, ink, dark, dark_ink in (_LOOKS[kind] for kind in CallKind)
    ]


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
        found[str(track)] = track_data(timeline, calls, chart.axes[track], most, launches=not large)
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


@dataclass(frozen=True)
class HostAnswers:
    """Answers a served page's requests for host rows."""

    run: Run
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False)
    """Requests arrive in threads of their own; a file is read once for all."""

    @cached_property
    def _axes(self) -> tuple[Axis, ...]:
        return axes_of(self.run)

    def __call__(self, request: str) -> bytes | None:
        """Answer a request, or return None if it is not valid.

        ``TRACK`` is for a GPU's rows, ``TRACK/FROM/TO`` for the calls of a window in ns, ``TRACK/find/TEXT`` for those
        with a text in their names.
        """
        request, finds, text = request.partition("/find/")
        try:
            track, *window = map(int, request.split("/"))
        except ValueError:
            return None
        if not 0 <= track < len(self.run.timelines) or len(window) not in ((0,) if finds else (0, 2)):
            return None
        timeline = self.run.timelines[track]
        with self._lock:
            axis = self._axes[track]
            calls = self.run.read_again(timeline, HOST_CALLS)
        if finds:
            return msgspec.json.encode(named_calls(timeline, calls, axis, unquote(text)) if calls else [])
        if not window or calls is None:
            return msgspec.json.encode(track_data(timeline, calls, axis, MOST_SERVED))
        return msgspec.json.encode(window_data(timeline, calls, axis, MOST_SERVED, (window[0], window[1])))
