"""Details of a clicked interval: a kernel's launch delay, a collective's other ranks.

The page unpacks these columns on the first click. Columns of collectives have an entry for each collective of the
chart, track by track; columns of instances have an entry for each matched collective.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dptrace.core.intervals import Int64
from dptrace.run.cross_rank import CrossRankAnalysis
from dptrace.run.run import Run
from dptrace.timeline.model import UNKNOWN, Kind
from dptrace.viewers.gantt.chart import Chart, drawn_intervals
from dptrace.viewers.gantt.column_packing import pack

__all__ = ["MAX_LAUNCHES", "details"]

MAX_LAUNCHES = 500_000
"""Largest number of intervals of a page with launch delays, which make a page larger by a third."""


def details(run: Run, chart: Chart) -> dict[str, Any]:
    """Return the columns for a run's chart, which must be the result of ``chart.chart``."""
    page_data = {"launch": pack(_launch_delays(run, chart))} if len(chart) <= MAX_LAUNCHES else {}
    if chart.collectives:
        page_data |= _members(run.cross_rank, run, chart)
    return page_data


def _shown(run: Run, chart: Chart, kind: Kind) -> list[Any]:
    origin, end = chart.origin_ns, chart.origin_ns + chart.end_ns
    return [drawn_intervals(timeline, origin, end, kind) for timeline in run.timelines]


def _launch_delays(run: Run, chart: Chart) -> Int64:
    """Return the ns from launch to start plus 1 (0: unknown) of kernels, collectives and copies, track by track."""
    kinds = [_shown(run, chart, kind) for kind in (Kind.COMPUTE, Kind.COMMUNICATION, Kind.MEMORY)]
    delays = [np.zeros(0, np.int64)]
    for timeline, *shown in zip(run.timelines, *kinds, strict=True):
        for index in shown:
            launch, start = timeline.launch_ns[index], timeline.start_ns[index]
            known = (launch != UNKNOWN) & (launch <= start)
            delays.append(np.where(known, start - launch + 1, 0))
    return np.concatenate(delays)


def _members(cross_rank: CrossRankAnalysis, run: Run, chart: Chart) -> dict[str, Any]:
    """Return each collective's instance plus 1 (0: unmatched), its wait and its lateness plus 1 (0: unknown)."""
    matches, timing = cross_rank.matches, cross_rank.timing
    known = [np.zeros((3, 0), np.int64)]
    for device, (timeline, shown) in enumerate(zip(run.timelines, _shown(run, chart, Kind.COMMUNICATION), strict=True)):
        comm = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)
        mask = matches.device == device
        columns = np.zeros((3, len(comm)), np.int64)
        late = np.where(timing.late_known[mask], timing.late_ns[mask] + 1, 0)
        columns[:, matches.index[mask]] = matches.instance[mask] + 1, timing.wait_ns[mask] + 1, late
        known.append(columns[:, np.searchsorted(comm, shown)])
    instance, wait, late = np.concatenate(known, axis=1)
    return {
        "instance": pack(instance),
        "wait": pack(wait),
        "late": pack(late),
        "instances": _instances(cross_rank),
        "groups": [{"name": g.name, "description": g.description, "size": g.size} for g in matches.groups],
    }


def _instances(cross_rank: CrossRankAnalysis) -> dict[str, Any]:
    matches, timing = cross_rank.matches, cross_rank.timing
    names = sorted(set(cross_rank.names))
    place = {name: i for i, name in enumerate(names)}
    columns = {
        "transfer": timing.transfer_ns + 1,
        "algbw": _rate(timing.algbw),
        "busbw": _rate(timing.busbw),
        "last": timing.last.astype(np.int64) + 1,
        "bytes": matches.bytes,
        "seq": np.array([max(collective.seq, -1) + 1 for collective in matches.collectives], np.int64),
        "group": matches.group.astype(np.int64),
        "name": np.array([place[name] for name in cross_rank.names], np.int64),
    }
    return {**{name: pack(column) for name, column in columns.items()}, "names": names}


def _rate(rate: Any) -> Int64:
    """Return whole kB/s, which fit in 32 bits; 0 if unknown."""
    whole: Int64 = (np.nan_to_num(rate, nan=0, posinf=0, neginf=0) / 1000).round().astype(np.int64)
    return whole
