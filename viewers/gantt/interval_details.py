"""What a page tells of one interval when asked: how late a kernel began after its launch, a collective's other ranks.

Packed columns, which the page unpacks when something is first clicked. Those of collectives have one entry for each
collective that the chart shows, track by track; those of instances one for each of the matches.
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
"""Intervals of a page up to which it holds when each was launched; above that, a page would grow by a third."""


def details(run: Run, chart: Chart) -> dict[str, Any]:
    """Give the columns for a chart of a run, unchanged since ``chart.chart`` made it."""
    page_data = {"launch": pack(_launch_delays(run, chart))} if len(chart) <= MAX_LAUNCHES else {}
    if chart.collectives:
        page_data |= _members(run.cross_rank, run, chart)
    return page_data


def _shown(run: Run, chart: Chart, kind: Kind) -> list[Any]:
    origin, end = chart.origin_ns, chart.origin_ns + chart.end_ns
    return [drawn_intervals(timeline, origin, end, kind) for timeline in run.timelines]


def _launch_delays(run: Run, chart: Chart) -> Int64:
    """Give ns from launch to start, plus 1, and 0 where not known: kernels, collectives and copies, track by track."""
    kinds = [_shown(run, chart, kind) for kind in (Kind.COMPUTE, Kind.COMMUNICATION, Kind.MEMORY)]
    delays = [np.zeros(0, np.int64)]
    for timeline, *shown in zip(run.timelines, *kinds, strict=True):
        for at in shown:
            launch, start = timeline.launch_ns[at], timeline.start_ns[at]
            known = (launch != UNKNOWN) & (launch <= start)
            delays.append(np.where(known, start - launch + 1, 0))
    return np.concatenate(delays)


def _members(together: CrossRankAnalysis, run: Run, chart: Chart) -> dict[str, Any]:
    """Give each collective's instance plus 1 (0: none), its wait and its lateness plus 1 (0: can't be told)."""
    matches, timing = together.matches, together.timing
    known = [np.zeros((3, 0), np.int64)]
    for device, (timeline, shown) in enumerate(zip(run.timelines, _shown(run, chart, Kind.COMMUNICATION), strict=True)):
        comm = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)
        own = matches.device == device
        of_all = np.zeros((3, len(comm)), np.int64)
        late = np.where(timing.late_known[own], timing.late_ns[own] + 1, 0)
        of_all[:, matches.index[own]] = matches.instance[own] + 1, timing.wait_ns[own], late
        known.append(of_all[:, np.searchsorted(comm, shown)])
    instance, wait, late = np.concatenate(known, axis=1)
    return {
        "instance": pack(instance),
        "wait": pack(wait),
        "late": pack(late),
        "instances": _instances(together),
        "groups": [{"name": g.name, "description": g.description, "size": g.size} for g in matches.groups],
    }


def _instances(together: CrossRankAnalysis) -> dict[str, Any]:
    matches, timing = together.matches, together.timing
    names = sorted(set(together.names))
    place = {name: i for i, name in enumerate(names)}
    columns = {
        "transfer": timing.transfer_ns,
        "upper": timing.upper_bound.astype(np.int64),
        "algbw": _rate(timing.algbw),
        "busbw": _rate(timing.busbw),
        "last": timing.last.astype(np.int64) + 1,
        "bytes": matches.bytes,
        "seq": np.array([max(one.seq, -1) + 1 for one in matches.collectives], np.int64),
        "group": matches.group.astype(np.int64),
        "name": np.array([place[name] for name in together.names], np.int64),
    }
    return {**{name: pack(column) for name, column in columns.items()}, "names": names}


def _rate(rate: Any) -> Int64:
    """Give whole kilobytes a second, which fit 32 bits; 0 where not known."""
    whole: Int64 = (np.nan_to_num(rate, nan=0, posinf=0, neginf=0) / 1000).round().astype(np.int64)
    return whole
