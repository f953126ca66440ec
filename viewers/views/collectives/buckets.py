"""Transfer times of similar collectives: a row of dots per bucket, or per kind and size; slow ones stand out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dptrace.analysis.cross_rank.transfers import Latency, with_phase_in_name
from dptrace.core.units import byte_size, milliseconds
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Axis, Dot, Drawing, Entry, Line, log_axis, message, time_axis
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.charts.bars import NO_COMMUNICATION, RowLayout
from dptrace.viewers.views.registry import View

__all__ = ["VIEW", "buckets", "buckets_table"]

TITLE = "Transfer time of each bucket, or of each kind and size"
MISSING = "No collective has all of its ranks here, so wait and transfer time are unknown."
MAX_ROWS = 24
_NORMAL, _SLOW = "#0072B2", theme.EXPOSED
_SPREAD = 40
"""Ratio of the longest to the shortest time from which the axis is logarithmic."""
_FINEST = 400
"""Resolution of the axis: dots closer than this are drawn as one."""


def buckets(run: Run) -> Drawing:
    """Draw the transfer time of each instance in a row per bucket, the largest total first."""
    latencies = with_phase_in_name(run.cross_rank.latencies)
    if not latencies:
        return message(TITLE, MISSING if len(run.cross_rank.matches) else NO_COMMUNICATION)
    shown = [latency for latency in latencies if latency.transfer_ns.max() > 0][:MAX_ROWS]
    if not shown:
        return message(TITLE, MISSING)
    times = np.concatenate([latency.transfer_ns for latency in shown])
    times = times[times > 0]
    low, high = float(times.min()), float(times.max())
    axis = log_axis([low, high], _time) if high > _SPREAD * low else time_axis(high * 1.02)
    rows = RowLayout(18)
    marks: list[Dot | Line] = []
    for latency in shown:
        y = rows.row(_name(latency)) + 9
        middle = float(latency.quantile(0.5))
        marks += [Line(((middle, y - 9), (middle, y + 9)), "#111827", width=2), *_dots(latency, y, axis)]
    slow = any(latency.slow.any() for latency in shown)
    legend: tuple[Entry, ...] = (Entry(_NORMAL, "one collective", "circle"),)
    legend += (Entry(_SLOW, "slow: over 1.5 times the median of its row", "diamond"),) if slow else ()
    text = "Transfer time, without waiting for the last rank. The line is the median."
    if len(latencies) > len(shown):
        text += f" {len(latencies) - len(shown)} rows that took less in all are not shown."
    return Drawing(TITLE, text, axis, rows.axis(), rows.y, tuple(marks), legend)


def _time(ns: float) -> str:
    return f"{ns / 1e6:g} ms" if ns >= 1e6 else f"{ns / 1e3:g} µs"


def _name(latency: Latency) -> str:
    size = byte_size(latency.bytes) if latency.bytes else "size unknown"
    return f"{latency.name or latency.kind} {size}"


def _dots(latency: Latency, y: float, axis: Axis) -> Iterator[Dot]:
    """Draw the instances; those that would overlap become one dot."""
    place = [round(axis.place(ns) * _FINEST) if ns > 0 else 0 for ns in latency.transfer_ns.tolist()]
    _, first, count = np.unique(np.stack((place, latency.slow)), axis=1, return_index=True, return_counts=True)
    for at, many in zip(first.tolist(), count.tolist(), strict=True):
        ns, slow = int(latency.transfer_ns[at]), bool(latency.slow[at])
        if ns > 0:
            tip = f"{_name(latency)}: {milliseconds(ns)} ms" + (f" ({many} like it)" if many > 1 else "")
            look = (_SLOW, f"{tip}, slow") if slow else (_NORMAL, tip)
            yield Dot(ns, y, *look, shape="diamond" if slow else "circle")


def buckets_table(run: Run) -> TextTable:
    """Return count, size, transfer times, wait and bandwidth of each bucket, or of each kind and size."""
    cross_rank = run.cross_rank
    rows = tuple(
        (
            latency.kind,
            latency.name or "–",
            str(len(latency.instances)),
            byte_size(latency.bytes),
            *(f"{latency.quantile(share) / 1e6:.3f}" for share in (0, 0.5, 0.9, 1)),
            "–" if latency.wait_ns is None else milliseconds(latency.wait_ns),
            "–" if latency.busbw is None else f"{latency.busbw / 1e9:.3g}",
            str(int(latency.slow.sum())),
        )
        for latency in with_phase_in_name(cross_rank.latencies)
    )
    times = "least ms", "p50 ms", "p90 ms", "most ms", "mean wait ms"
    columns = ("kind", "bucket", "count", "bytes", *times, "busbw GB/s", "slow")
    nothing = MISSING if len(cross_rank.matches) else NO_COMMUNICATION
    note = "Transfer times: of each collective that of the rank which did not wait."
    return TextTable(columns, rows, 2, note if rows else nothing)


VIEW = View("buckets", TITLE, buckets_table, buckets, in_report=True, shows_cross_rank=True)
