"""Synthetic ranks, and real ones with shifted clocks or missing parts, for tests across ranks."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of
from dptrace.core.intervals import Int64
from dptrace.readers.discovery import find
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.trace import Trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.model import UNKNOWN, Collective, Kind, Phase, Timeline, Windows
from tests.support.real_traces import real

JOBS = ("sharded_h100_8ranks", "dlrm_v100_4ranks", "straggler_v100_4ranks")
"""Real jobs with the traces of all ranks."""

Call = tuple[int, int, int, Collective]
"""Step, start and end in ns, and the collective."""


def reduce(step: int, end: int, bytes: int = 4_000, length: int = 20_000, **about: object) -> Call:
    """Make an all-reduce of group 0, ending at *end* ns."""
    what = Collective("all_reduce", bytes, "Float", **{"group": "0", **about})  # type: ignore[arg-type]
    return step, end - length, end, what


def rank(
    number: int,
    calls: list[Call],
    steps: tuple[str, ...] = ("ProfilerStep#0", "ProfilerStep#1"),
    lane: int = 20,
    on_cpu: bool = False,
) -> DeviceFigures:
    """Make the figures of a rank with only communication; a call of step -1 was launched before the first step."""
    calls = sorted(calls, key=lambda call: call[1])
    start = np.array([call[1] for call in calls], np.int64)
    end = np.array([call[2] for call in calls], np.int64)
    count = len(calls)
    low, high = (int(start.min()), int(end.max())) if count else (0, 1)
    return figures_of(
        Timeline(
            rank=number,
            device=-1 if on_cpu else number,
            device_name="CPU" if on_cpu else "NVIDIA H100",
            start_ns=start,
            end_ns=end,
            name=np.zeros(count, np.int32),
            names=("nccl",),
            kind=np.full(count, Kind.COMMUNICATION, np.uint8),
            phase=np.full(count, Phase.BACKWARD, np.uint8),
            step=np.array([call[0] for call in calls], np.int32),
            lane=np.full(count, lane, np.int64),
            collective=np.arange(count, dtype=np.int32),
            collectives=tuple(call[3] for call in calls),
            windows=Windows(steps, np.linspace(low, high, len(steps) + 1).astype(np.int64)),
        )
    )


@cache
def real_traces(name: str) -> tuple[Trace, ...]:
    """Read a real job's files, in order of rank."""
    traces = [read_trace(file) for file in find([real(name)]).files]
    return tuple(sorted(traces, key=lambda trace: trace.rank or 0))


@cache
def real_ranks(name: str) -> tuple[DeviceFigures, ...]:
    """Return the figures of a real job's ranks, in order."""
    return tuple(map(of_trace, real_traces(name)))


def of_trace(trace: Trace) -> DeviceFigures:
    """Return the figures of a trace with one GPU."""
    (timeline,) = build_timelines(trace, trace.rank or 0)
    return figures_of(timeline)


def cut(trace: Trace, low: float, high: float) -> Trace:
    """Keep the events that begin in a part of the recording, from *low* to *high* as shares of its time."""
    first, last = int(trace.start_ns.min()), int(trace.end_ns.max())
    begin, stop = first + low * (last - first), first + high * (last - first)
    return _having(trace, (trace.start_ns >= begin) & (trace.start_ns < stop))


def _having(trace: Trace, chosen: NDArray[np.bool_]) -> Trace:
    place = np.cumsum(chosen) - 1
    columns = ("start_ns", "end_ns", "category", "name", "thread", "correlation", "device", "stream")
    kept = {column: getattr(trace, column)[chosen] for column in columns}
    for name in ("comm", "products"):
        kept[name] = {int(place[i]): args for i, args in getattr(trace, name).items() if chosen[i]}
    return dataclasses.replace(trace, **kept)


def shifted(device: DeviceFigures, ahead_ns: int, ppm: float = 0.0) -> DeviceFigures:
    """Return a copy with a clock that is ahead and drifts from the first interval on."""
    timeline = device.timeline
    origin = int(timeline.start_ns[0])

    def redact(times: Int64) -> Int64:
        moved: Int64 = times + ahead_ns + np.rint((times - origin) * (ppm * 1e-6)).astype(np.int64)
        return moved

    host = timeline.host
    host = replace(host, start_ns=redact(host.start_ns), end_ns=int(redact(np.array([host.end_ns]))[0]))
    host = replace(host, returned_ns=redact(host.returned_ns), step_ns=redact(host.step_ns))
    known = timeline.launch_ns != UNKNOWN
    return figures_of(
        replace(
            timeline,
            start_ns=redact(timeline.start_ns),
            end_ns=redact(timeline.end_ns),
            launch_ns=np.where(known, redact(timeline.launch_ns), UNKNOWN),
            windows=Windows(timeline.windows.names, redact(timeline.windows.bounds)),
            host=host,
        )
    )


def without(device: DeviceFigures, *communications: int) -> DeviceFigures:
    """Drop some of a device's communication intervals."""
    timeline = device.timeline
    comm = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)
    kept = np.ones(len(timeline), np.bool_)
    kept[comm[list(communications)]] = False
    return replace(
        device,
        timeline=timeline.take(kept),
        exposed_ns=device.exposed_ns[kept],
        overlapped_ns=device.overlapped_ns[kept],
    )


def instances(matches: Matches, shown: int = 0, by: int = -1) -> set[frozenset[tuple[int, int]]]:
    """Return each instance as the set of its members: rank, and start on its own clock.

    Args:
        shown, by: the offset of one rank's clock, which is subtracted, and this rank.
    """
    found = []
    for i in range(len(matches)):
        part = slice(matches.first[i], matches.first[i + 1])
        ranks = [matches.device_ids[d][0] for d in matches.device[part].tolist()]
        starts = matches.start_ns[part].tolist()
        found.append(frozenset((r, t - shown if r == by else t) for r, t in zip(ranks, starts, strict=True)))
    assert len(found) == len(set(found))
    return set(found)
