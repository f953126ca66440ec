"""Bars of communication by kind: exposed and overlapped time per rank and step."""

from __future__ import annotations

from dptrace.analysis.per_gpu.split import OVERLAPPED_LABEL, by_kind
from dptrace.core.units import byte_size, milliseconds
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Drawing, message
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.charts.bars import NO_COMMUNICATION, TALL, Bar, bar_chart
from dptrace.viewers.views.registry import View
from dptrace.viewers.views.steps.step_bars import exposed_bar_parts

__all__ = ["VIEW", "communication", "communication_table"]

TITLE = "Communication by kind"
_WAIT_COLUMNS = {"exposed_wait_ns": "waiting ms", "exposed_unmatched_ns": "incomplete ms"}
"""Parts of exposed communication, where a run has them."""


def communication(run: Run) -> Drawing:
    """Draw the waiting, exposed and overlapped time of each kind of collective, per GPU and step."""
    kinds = sorted(by_kind(run.splits), key=lambda kind: -(kind.exposed_ns + kind.overlapped_ns))
    if not kinds:
        return message(TITLE, NO_COMMUNICATION)
    bars, waits = [], run.cross_rank.mean_waits_by_kind()
    for kind in kinds:
        parts = (
            *exposed_bar_parts(kind.exposed_ns, waits[kind.kind], None),
            (OVERLAPPED_LABEL, kind.overlapped_ns, theme.OVERLAPPED),
        )
        size = f", {byte_size(kind.bytes)}" if kind.bytes else ""
        bars.append(Bar(kind.kind, kind.kind, parts, f" · {kind.count:.4g} of them{size}"))
    subtitle = "Mean over all ranks and steps. Shares are of the time of that kind."
    return bar_chart(TITLE, subtitle, bars, TALL, right=220)


def communication_table(run: Run) -> TextTable:
    """Return count, bytes and times of each kind of collective, per GPU and step."""
    waits = run.cross_rank.mean_waits_by_kind()
    shown = {name: heading for name, heading in _WAIT_COLUMNS.items() if any(one[name] for one in waits.values())}
    rows = tuple(
        (
            kind.kind,
            f"{kind.count:.4g}",
            byte_size(kind.bytes),
            milliseconds(kind.exposed_ns),
            *("?" if (ns := waits[kind.kind][name]) is None else milliseconds(ns) for name in shown),
            milliseconds(kind.overlapped_ns),
            "–" if kind.overlap_percent is None else f"{kind.overlap_percent:.1f} %",
        )
        for kind in by_kind(run.splits)
    )
    columns = ("kind", "count", "bytes", "exposed ms", *shown.values(), "overlapped ms", "overlap")
    return TextTable(columns, rows, 1, "Mean per rank and step." if rows else NO_COMMUNICATION)


VIEW = View("communication", TITLE, communication_table, communication, in_report=True)
