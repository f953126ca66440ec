"""The data of one GPU's host rows, for the page: its threads' calls, what launched its kernels, what delayed it.

A page in one file holds it for its GPUs; a served page asks for it, GPU by GPU and window by window.
"""

from __future__ import annotations

import base64
import gzip
from dataclasses import astuple
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, unique
from dptrace.timeline.host_calls import HostCalls
from dptrace.timeline.model import HostActivity, Kind, Timeline
from dptrace.viewers.gantt.chart import Chart, drawn_intervals
from dptrace.viewers.gantt.column_packing import differences, pack
from dptrace.viewers.gantt.host.calls_window import CallsWindow, calls_window

__all__ = ["KINDS", "MOST_THREADS", "threads_of", "track_data", "window_data"]

KINDS = (Kind.COMPUTE, Kind.COMMUNICATION, Kind.MEMORY)
"""The order of a GPU's intervals in the columns of launches."""
MOST_THREADS = 6
"""Threads of a GPU with rows at most: those that launched most."""


def track_data(
    timeline: Timeline, calls: HostCalls | None, chart: Chart, most: int, launches: bool = True
) -> dict[str, Any]:
    """Return the host rows of one GPU as data of the page.

    Args:
        calls: the host calls of its rank; None where they can't be read.
        most: number of calls at most.
        launches: include what launched each interval.
    """
    data: dict[str, Any] = {"activity": _activity(timeline.host, chart.origin_ns, chart.end_ns), "threads": []}
    if calls is None or not len(calls):
        return data
    device = _drawn(timeline, calls, chart)
    threads, others = threads_of(calls, device)
    if launches:
        detail, used = _numbered(calls.device_detail[device[device >= 0]])
        data["launches"] = _launch_columns(calls, device, chart.origin_ns, threads, detail)
        data["details"] = _packed_texts([astuple(calls.details[i]) for i in used])
    data |= {"threads": [calls.threads[thread] for thread in threads], "otherThreads": others}
    return data | window_data(timeline, calls, chart, most, (0, chart.end_ns))


def window_data(
    timeline: Timeline, calls: HostCalls, chart: Chart, most: int, window: tuple[int, int]
) -> dict[str, Any]:
    """Return the calls of a GPU's host rows in a window of time, the longest *most* at most.

    Args:
        window: since the chart's origin.
    """
    origin, (start, end) = chart.origin_ns, window
    threads, _ = threads_of(calls, _drawn(timeline, calls, chart))
    found = calls_window(calls, threads, start + origin, end + origin, most)
    name, names = _numbered(calls.name[found.index])
    detail, details = _numbered(calls.detail[found.index])
    place = {thread: i for i, thread in enumerate(threads)}
    firsts = calls.start_ns[found.index[_begins(found)]] - origin
    return {
        "calls": {
            # Each level has the time of its first call; the others follow as differences.
            "levels": [
                [place[level.thread], level.flame, level.depth, level.count, first]
                for level, first in zip(found.levels, firsts.tolist(), strict=True)
            ],
            "columns": _call_columns(calls, found, name, detail),
            "names": _packed_texts([calls.names[i] for i in names]),
            "details": _packed_texts([astuple(calls.details[i]) for i in details]),
            "window": [start, end],
            "total": len(found.index) + found.left_out,
            "leftOut": found.left_out,
            "shortest": found.shortest_ns,
        }
    }


def _drawn(timeline: Timeline, calls: HostCalls, chart: Chart) -> Int64:
    """Return the places of a GPU's drawn intervals in the columns ``device_…``, or -1."""
    end = chart.origin_ns + chart.end_ns
    drawn = np.concatenate([drawn_intervals(timeline, chart.origin_ns, end, kind) for kind in KINDS])
    places: Int64 = calls.device_index(timeline)[drawn]
    return places


def threads_of(calls: HostCalls, device: Int64) -> tuple[list[int], int]:
    """Return the threads whose rows are shown, the training loop's first, and the number of further ones.

    Args:
        device: places of a GPU's intervals in the columns ``device_…``, or -1.
    """
    launch = calls.device_call[device[device >= 0]]
    launched = np.bincount(calls.thread[launch[launch >= 0]], minlength=len(calls.threads))
    main = [thread for thread, name in enumerate(calls.threads) if name == "main"]
    others = [thread for thread in np.argsort(-launched, kind="stable").tolist() if launched[thread]]
    threads = list(dict.fromkeys([*main, *others]))
    return threads[:MOST_THREADS], max(len(threads) - MOST_THREADS, 0)


def _begins(found: CallsWindow) -> Int64:
    """Return the position of each level's first call."""
    begins: Int64 = np.cumsum([0, *(level.count for level in found.levels)])[:-1]
    return begins


def _call_columns(calls: HostCalls, found: CallsWindow, name: Int64, detail: Int64) -> dict[str, Any]:
    index = found.index
    start = calls.start_ns[index]
    delta = np.diff(start, prepend=start[:1])
    delta[_begins(found)] = 0
    columns = {"delta": delta, "duration": calls.end_ns[index] - start, "kind": calls.kind[index].astype(np.int64)}
    columns |= {"name": name, "detail": detail}
    return {key: pack(column) for key, column in columns.items()}


def _launch_columns(calls: HostCalls, device: Int64, origin: int, threads: list[int], detail: Int64) -> dict[str, Any]:
    """Return for each interval of a GPU what launched it: start, length, thread, id; and the interval's details.

    Length, thread, id and details are plus 1, and 0 where they are unknown. Starts and ids are differences.
    """
    found = device >= 0
    call = np.where(found, calls.device_call[device], -1)
    known = call >= 0
    # Where it is unknown, that of the interval before, so that the difference is small.
    last = np.maximum.accumulate(np.where(known, np.arange(len(call)), -1))
    start = np.where(last < 0, 0, calls.start_ns[call[last]] - origin)
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


def _activity(host: HostActivity, origin: int, length: int) -> dict[str, Any]:
    """Return the pieces of what the host did, from the idle analysis: ascending starts, an end, and a label each."""
    none = np.empty(0, np.int64)
    start, end, label = host.cut(origin, origin + length) if len(host.start_ns) else (none, none, none)
    number, used = _numbered(label)
    return {
        "labels": [[host.labels[i].cause, host.labels[i].what, host.labels[i].where] for i in used],
        "delta": pack(np.diff(start - origin, prepend=0)),
        "label": pack(number),
        "end": int(end[-1]) - origin if len(end) else 0,
    }
