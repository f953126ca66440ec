"""Bars of communication by kind: exposed and overlapped time per rank and step."""

from __future__ import annotations

from dptrace.analysis.per_gpu.labels import OVERLAPPED_LABEL, PART_LABELS
from dptrace.analysis.per_gpu.split import Part, by_kind
from dptrace.core.units import byte_size, milliseconds
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Drawing, message
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.views.bars import NO_COMMUNICATION, TALL, Bar, bar_chart
from dptrace.viewers.views.view import View

__all__ = ["VIEW", "communication", "communication_table"]

TITLE = "Communication by kind"


def communication(run: Run) -> Drawing:
    """Draw the exposed and overlapped time of each kind of collective, per GPU and step."""
    kinds = sorted(by_kind(run.splits), key=lambda kind: -(kind.exposed_ns + kind.overlapped_ns))
    if not kinds:
        return message(TITLE, NO_COMMUNICATION)
    bars = []
    for kind in kinds:
        parts = (
            (PART_LABELS[Part.EXPOSED_COMM], kind.exposed_ns, theme.EXPOSED),
            (OVERLAPPED_LABEL, kind.overlapped_ns, theme.OVERLAPPED),
        )
        size = f", {byte_size(kind.bytes)}" if kind.bytes else ""
        bars.append(Bar(kind.kind, kind.kind, parts, f" · {kind.count:.4g} of them{size}"))
    subtitle = "Mean over all ranks and steps. Shares are of the time of that kind."
    return bar_chart(TITLE, subtitle, bars, TALL, right=220)


def communication_table(run: Run) -> TextTable:
    """Return count, bytes and times of each kind of collective, per GPU and step."""
    rows = tuple(
        (
            kind.kind,
            f"{kind.count:.4g}",
            byte_size(kind.bytes),
            milliseconds(kind.exposed_ns),
            milliseconds(kind.overlapped_ns),
            "–" if kind.overlap_percent is None else f"{kind.overlap_percent:.1f} %",
        )
        for kind in by_kind(run.splits)
    )
    columns = ("kind", "count", "bytes", "exposed ms", "overlapped ms", "overlap")
    return TextTable(columns, rows, 1, "Mean per rank and step." if rows else NO_COMMUNICATION)


VIEW = View("communication", TITLE, communication_table, communication, in_report=True)
