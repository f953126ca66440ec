"""Bars of idle time by cause: the mean of each rank's steps."""

from __future__ import annotations

from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.analysis.per_gpu.labels import CAUSE_LABELS
from dptrace.core.units import milliseconds
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Box, Drawing, Entry, Label, message, time_axis
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.views.bars import DENSE, FLAT, NO_STEP, TALL, RowLayout, rank_labels, stack, with_steps
from dptrace.viewers.views.view import View

__all__ = ["VIEW", "idle", "idle_table"]

TITLE = "Idle time by cause"
NOT_IDLE = "No GPU was idle in a step of this run."


def _cause(name: str) -> str:
    return CAUSE_LABELS.get(name, name.removesuffix("_ns").replace("_", " ")).removeprefix("Idle: ")


def _cause_color(name: str) -> str:
    return theme.CAUSE_COLORS.get(name, theme.IDLE)


def idle(run: Run) -> Drawing:
    """Draw each rank's idle time by cause: the mean of its steps."""
    devices = with_steps(run)
    if not any(device.split.figures["idle_ns"].any() for device in devices):
        return message(TITLE, NOT_IDLE if devices else NO_STEP)
    rows, longest = RowLayout(TALL if len(devices) <= DENSE else FLAT), 0.0
    marks: list[Box | Label] = []
    for label, device in zip(rank_labels(run, devices), devices, strict=True):
        means, top = device.mean_idle(), rows.row(label)
        whole = sum(means.values())
        parts = [(_cause(c), means[c], _cause_color(c), theme.ink_on(_cause_color(c))) for c in CAUSES]
        marks += stack(parts, top, rows.height, label, whole)
        marks.append(Label(whole, top + rows.height / 2, f"{milliseconds(whole)} ms"))
        longest = max(longest, whole)
    used = {mark.color for mark in marks if isinstance(mark, Box)}
    legend = tuple(Entry(_cause_color(c), _cause(c)) for c in CAUSES if _cause_color(c) in used)
    subtitle = "Mean of each rank's steps. Shares are of its idle time."
    return Drawing(TITLE, subtitle, time_axis(longest), rows.axis(), rows.y, tuple(marks), legend, right=76)


def idle_table(run: Run) -> TextTable:
    """Return each rank's idle time by cause, in ms."""
    devices = with_steps(run)
    rows = []
    for label, device in zip(rank_labels(run, devices), devices, strict=True):
        means = device.mean_idle()
        rows.append((label, *(milliseconds(means[cause]) for cause in CAUSES), milliseconds(sum(means.values()))))
    columns = ("rank", *map(_cause, CAUSES), "idle")
    return TextTable(columns, tuple(rows), 1, "In ms, means over the steps." if rows else NO_STEP)


VIEW = View("idle", TITLE, idle_table, idle, in_report=True)
