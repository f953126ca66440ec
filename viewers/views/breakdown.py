"""A bar for each rank and step: its parts, which add up to its wall time."""

from __future__ import annotations

from dptrace.run.run import Run
from dptrace.viewers.base.format import step_label
from dptrace.viewers.base.marks import Box, Drawing, Label, message, time_axis
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.views.bars import DENSE, FLAT, NO_STEP, TALL, RowLayout, rank_labels, with_steps
from dptrace.viewers.views.step_bars import COLUMNS, part_legend, step_bar, step_cells
from dptrace.viewers.views.summary import summary
from dptrace.viewers.views.view import View

__all__ = ["VIEW", "breakdown", "breakdown_table"]

TITLE = "Breakdown of each step"
MAX_BARS = 96
"""Number of bars above which each bar is a rank's mean step."""


def breakdown(run: Run) -> Drawing:
    """Draw a bar for each rank and step, or for each rank's mean step where there would be too many."""
    devices = with_steps(run)
    if not devices:
        return message(TITLE, NO_STEP)
    bars = sum(len(device.split.names) for device in devices)
    if bars > MAX_BARS:
        return summary(run, f"{bars} steps of all ranks are too many for a bar each: a bar is the mean of a rank's.")
    rows, longest = RowLayout(TALL if bars <= DENSE else FLAT + 3), 0.0
    marks: list[Box | Label] = []
    for label, device in zip(rank_labels(run, devices), devices, strict=True):
        split = device.split
        if len(split.names) > 1:
            rows.head(label)
        for k, name in enumerate(split.names):
            step = f"step {step_label(name)}"
            top = rows.row(step if len(split.names) > 1 else label)
            figures = {key: float(values[k]) for key, values in split.figures.items()}
            marks += step_bar(figures, f"{label}, {step}", top, rows.height)
            longest = max(longest, figures["wall_ns"])
    subtitle = "The parts of each step add up to its wall time."
    return Drawing(TITLE, subtitle, time_axis(longest), rows.axis(), rows.y, tuple(marks), part_legend(marks), right=76)


def breakdown_table(run: Run) -> TextTable:
    """Return the nine figures of each rank and step, in ms."""
    devices = with_steps(run)
    rows = [
        (label, step_label(name), *step_cells({key: float(v[k]) for key, v in device.split.figures.items()}))
        for label, device in zip(rank_labels(run, devices), devices, strict=True)
        for k, name in enumerate(device.split.names)
    ]
    columns = ("rank", "step", *COLUMNS)
    return TextTable(columns, tuple(rows), 2, "In ms. The parts up to idle add up to wall." if rows else NO_STEP)


VIEW = View("breakdown", TITLE, breakdown_table, breakdown, in_report=True)
