"""Bars of communication by kind: exposed and overlapped time per rank and step."""

from __future__ import annotations

from dptrace.analysis.per_gpu.labels import OVERLAPPED_LABEL, PART_LABELS
from dptrace.analysis.per_gpu.split import Part, by_kind
from dptrace.core.units import byte_size, milliseconds
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Box, Drawing, Entry, Label, message, time_axis
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.views.bars import NO_COMMUNICATION, TALL, RowLayout, stack
from dptrace.viewers.views.view import View

__all__ = ["VIEW", "communication", "communication_table"]

TITLE = "Communication by kind"
_COMMUNICATION = ((PART_LABELS[Part.EXPOSED_COMM], theme.EXPOSED), (OVERLAPPED_LABEL, theme.OVERLAPPED))


def communication(run: Run) -> Drawing:
    """Draw the exposed and overlapped time of each kind of collective, per GPU and step."""
    kinds = by_kind(run.splits)
    if not kinds:
        return message(TITLE, NO_COMMUNICATION)
    rows, longest = RowLayout(TALL), 0.0
    marks: list[Box | Label] = []
    for kind in sorted(kinds, key=lambda kind: -(kind.exposed_ns + kind.overlapped_ns)):
        top = rows.row(kind.kind)
        whole = kind.exposed_ns + kind.overlapped_ns
        times = kind.exposed_ns, kind.overlapped_ns
        parts = [
            (name, ns, color, theme.ink_on(color)) for (name, color), ns in zip(_COMMUNICATION, times, strict=True)
        ]
        size = f", {byte_size(kind.bytes)}" if kind.bytes else ""
        marks += stack(parts, top, rows.height, kind.kind, whole)
        marks.append(Label(whole, top + rows.height / 2, f"{milliseconds(whole)} ms · {kind.count:.4g} of them{size}"))
        longest = max(longest, whole)
    used = {mark.color for mark in marks if isinstance(mark, Box)}
    subtitle = "Mean over all ranks and steps. Shares are of the time of that kind."
    legend = tuple(Entry(color, name) for name, color in _COMMUNICATION if color in used)
    return Drawing(TITLE, subtitle, time_axis(longest), rows.axis(), rows.y, tuple(marks), legend, right=220)


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
