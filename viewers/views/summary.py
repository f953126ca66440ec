"""A bar for each rank: the parts of its mean step."""

from __future__ import annotations

from dptrace.analysis.per_gpu.step_grid import step_grid
from dptrace.run.run import Run
from dptrace.viewers.base.marks import Box, Drawing, Label, message, time_axis
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.views.bars import DENSE, FLAT, NO_STEP, TALL, RowLayout, rank_labels, with_steps
from dptrace.viewers.views.step_bars import COLUMNS, part_legend, step_bar, step_cells
from dptrace.viewers.views.view import View

__all__ = ["VIEW", "summary", "summary_table"]

TITLE = "Mean step of each rank"


def summary(run: Run, note: str = "") -> Drawing:
    """Draw a bar for each rank: the mean of its steps."""
    devices = with_steps(run)
    if not devices:
        return message(TITLE, NO_STEP)
    rank_step_grid = step_grid(devices)
    rows, longest = RowLayout(TALL if len(devices) <= DENSE else FLAT), 0.0
    marks: list[Box | Label] = []
    means = {name: rank_step_grid.mean(name) for name in rank_step_grid.figures}
    every = 1 if len(devices) <= DENSE * 2 else 4
    for row, label in enumerate(rank_labels(run, devices)):
        top = rows.row(label if row % every == 0 else "")
        figures = {name: float(values[row]) for name, values in means.items()}
        marks += step_bar(figures, label, top, rows.height)
        longest = max(longest, figures["wall_ns"])
    text = note or "Means over the steps. The parts add up to the mean wall time."
    return Drawing(TITLE, text, time_axis(longest), rows.axis(), rows.y, tuple(marks), part_legend(marks), right=76)


def summary_table(run: Run) -> TextTable:
    """Return the nine figures of each rank's mean step, in ms."""
    devices = with_steps(run)
    rank_step_grid = step_grid(devices)
    means = {name: rank_step_grid.mean(name) for name in rank_step_grid.figures}
    rows = [
        (label, *step_cells({name: float(values[row]) for name, values in means.items()}))
        for row, label in enumerate(rank_labels(run, devices))
    ]
    columns = ("rank", *COLUMNS)
    return TextTable(columns, tuple(rows), 1, "In ms, means over the steps." if rows else NO_STEP)


VIEW = View("summary", TITLE, summary_table, summary)
