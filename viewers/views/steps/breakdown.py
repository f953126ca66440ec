"""A bar for each rank and step: its parts, which add up to its wall time."""

from __future__ import annotations

from collections.abc import Iterator

from dptrace.analysis.cross_rank.transfers import ExposedWait
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.run.run import Run
from dptrace.viewers.base.format import step_label
from dptrace.viewers.base.marks import Drawing, message
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.charts.bars import DENSE, FLAT, NO_STEP, TALL, bar_chart, rank_labels, step_waits, with_steps
from dptrace.viewers.views.registry import View
from dptrace.viewers.views.steps.step_bars import StepFigures, columns, shown_figures, step_bar, step_cells
from dptrace.viewers.views.steps.summary import summary

__all__ = ["VIEW", "breakdown", "breakdown_table"]

TITLE = "Breakdown of each step"
NOTE = "In ms. The parts up to idle add up to wall; waiting and missing ranks are parts of exposed communication."
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
    for rank, device, wait in zip(rank_labels(run, devices), devices, step_waits(run), strict=True):
        several = len(device.split.names) > 1
        for k, (name, figures) in enumerate(_steps(device, wait)):
            step, head = f"step {name}", rank if several and not k else ""
            waits_for = int(wait.waits_for[k])
            drawn.append(step_bar(figures, step if several else rank, f"{rank}, {step}", head, waits_for))
    subtitle = "The parts of each step add up to its wall time."
    return bar_chart(TITLE, subtitle, drawn, TALL if bars <= DENSE else FLAT + 3)


def breakdown_table(run: Run) -> TextTable:
    """Return the figures of each rank and step, in ms."""
    devices = with_steps(run)
    found = [
        (rank, name, figures)
        for rank, device, wait in zip(rank_labels(run, devices), devices, step_waits(run), strict=True)
        for name, figures in _steps(device, wait)
    ]
    names = shown_figures([figures for *_, figures in found])
    rows = tuple((rank, name, *step_cells(figures, names)) for rank, name, figures in found)
    return TextTable(("rank", "step", *columns(names)), rows, 2, NOTE if rows else NO_STEP)


def _steps(device: DeviceFigures, wait: ExposedWait) -> Iterator[tuple[str, StepFigures]]:
    """Yield the name of each step, and its figures."""
    for k, name in enumerate(device.split.names):
        yield step_label(name), {**{key: float(v[k]) for key, v in device.split.figures.items()}, **wait.step(k)}


VIEW = View("breakdown", TITLE, breakdown_table, breakdown, in_report=True)
