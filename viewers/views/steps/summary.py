"""A bar for each rank: the parts of its mean step."""

from __future__ import annotations

from dptrace.analysis.per_gpu.device import step_grid
from dptrace.run.run import Run
from dptrace.viewers.base.marks import Drawing, message
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.charts.bars import DENSE, FLAT, NO_STEP, TALL, bar_chart, rank_labels, step_waits, with_steps
from dptrace.viewers.views.registry import View
from dptrace.viewers.views.steps.step_bars import StepFigures, columns, shown_figures, step_bar, step_cells

__all__ = ["VIEW", "summary", "summary_table"]

TITLE = "Mean step of each rank"


def summary(run: Run, note: str = "") -> Drawing:
    """Draw a bar for each rank: the mean of its steps."""
    means = _means(run)
    if not means:
        return message(TITLE, NO_STEP)
    every = 1 if len(means) <= DENSE * 2 else 4
    ranks = [wait.waits_for_most() for wait in step_waits(run)]
    bars = [
        step_bar(figures, "" if row % every else rank, rank, rank=ranks[row])
        for row, (rank, figures) in enumerate(means.items())
    ]
    text = note or "Means over the steps. The parts add up to the mean wall time."
    return bar_chart(TITLE, text, bars, TALL if len(bars) <= DENSE else FLAT)


def summary_table(run: Run) -> TextTable:
    """Return the figures of each rank's mean step, in ms."""
    means = _means(run)
    names = shown_figures(list(means.values()))
    rows = tuple((rank, *step_cells(figures, names)) for rank, figures in means.items())
    return TextTable(("rank", *columns(names)), rows, 1, "In ms, means over the steps." if rows else NO_STEP)


def _means(run: Run) -> dict[str, StepFigures]:
    """Return the figures of each rank's mean step."""
    devices = with_steps(run)
    grid = step_grid(devices)
    means = {name: grid.mean(name).tolist() for name in grid.figures}
    waits = [wait.mean() for wait in step_waits(run)]
    return {
        rank: {name: values[row] for name, values in means.items()} | waits[row]
        for row, rank in enumerate(rank_labels(run, devices))
    }


VIEW = View("summary", TITLE, summary_table, summary)
