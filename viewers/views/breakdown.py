"""A bar for each rank and step: its parts, which add up to its wall time."""

from __future__ import annotations

from collections.abc import Iterator

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.run.run import Run
from dptrace.viewers.base.format import step_label
from dptrace.viewers.base.marks import Drawing, message
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.views.bars import DENSE, FLAT, NO_STEP, TALL, bar_chart, rank_labels, with_steps
from dptrace.viewers.views.step_bars import COLUMNS, step_bar, step_cells
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
    drawn = []
    for rank, device in zip(rank_labels(run, devices), devices, strict=True):
        several = len(device.split.names) > 1
        for k, (name, figures) in enumerate(_steps(device)):
            step = f"step {name}"
            drawn.append(
                step_bar(figures, step if several else rank, f"{rank}, {step}", rank if several and not k else "")
            )
    subtitle = "The parts of each step add up to its wall time."
    return bar_chart(TITLE, subtitle, drawn, TALL if bars <= DENSE else FLAT + 3)


def breakdown_table(run: Run) -> TextTable:
    """Return the nine figures of each rank and step, in ms."""
    devices = with_steps(run)
    rows = tuple(
        (rank, name, *step_cells(figures))
        for rank, device in zip(rank_labels(run, devices), devices, strict=True)
        for name, figures in _steps(device)
    )
    note = "In ms. The parts up to idle add up to wall." if rows else NO_STEP
    return TextTable(("rank", "step", *COLUMNS), rows, 2, note)


def _steps(device: DeviceFigures) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the name of each step, and its figures in ns."""
    for k, name in enumerate(device.split.names):
        yield step_label(name), {key: float(values[k]) for key, values in device.split.figures.items()}


VIEW = View("breakdown", TITLE, breakdown_table, breakdown, in_report=True)
