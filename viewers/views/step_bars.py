"""The parts of each step as bars: one per rank and step, or one per rank for its mean step."""

from __future__ import annotations

from collections.abc import Sequence

from dptrace.analysis.per_gpu.labels import OVERLAPPED_LABEL, PART_LABELS
from dptrace.analysis.per_gpu.split import Part, overlap_percent
from dptrace.analysis.per_gpu.step_grid import step_grid
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Box, Drawing, Entry, Label, message, time_axis
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.terminal.split_tables import milliseconds, step_label
from dptrace.viewers.views.bars import DENSE, FLAT, NO_STEP, TALL, RowLayout, rank_labels, stack, with_steps

__all__ = ["breakdown", "breakdown_table", "summary", "summary_table"]

BREAKDOWN_TITLE, SUMMARY_TITLE = "Breakdown of each step", "Mean step of each rank"
MAX_BARS = 96
"""Number of bars above which each bar is a rank's mean step."""
_UNDER = 4.0
"""Height in pixels of the line for overlapped communication."""
_FIGURE_OF = {
    Part.FORWARD: "forward_ns",
    Part.BACKWARD: "backward_ns",
    Part.OPTIMIZER: "optimizer_ns",
    Part.OTHER: "other_ns",
    Part.EXPOSED_COMM: "exposed_comm_ns",
    Part.EXPOSED_MEMORY: "exposed_memory_ns",
    Part.IDLE: "idle_ns",
}


def _step_bar(figures: dict[str, float], label: str, top: float, height: float) -> list[Box | Label]:
    """Draw the parts of a step, overlapped communication as a line below them, and the wall time at the end."""
    parts = [
        (PART_LABELS[part], figures[_FIGURE_OF[part]], color, theme.ink_on(color))
        for part, color in theme.PART_COLORS.items()
    ]
    marks: list[Box | Label] = list(stack(parts, top, height, label, figures["wall_ns"]))
    if (hidden := figures["overlapped_comm_ns"]) > 0:
        tip = f"{label}: {OVERLAPPED_LABEL} {milliseconds(hidden)} ms"
        marks.append(Box(0, hidden, top + height, top + height + _UNDER, theme.OVERLAPPED, tip))
    marks.append(Label(figures["wall_ns"], top + height / 2, f"{milliseconds(figures['wall_ns'])} ms"))
    return marks


_PART_LEGEND = (
    *(Entry(color, PART_LABELS[part]) for part, color in theme.PART_COLORS.items()),
    Entry(theme.OVERLAPPED, f"{OVERLAPPED_LABEL}: under compute, drawn below the bar"),
)


def _legend(marks: Sequence[object]) -> tuple[Entry, ...]:
    """Return the legend entries of what is drawn."""
    used = {mark.color for mark in marks if isinstance(mark, Box)}
    return tuple(entry for entry in _PART_LEGEND if entry.color in used)


def breakdown(run: Run) -> Drawing:
    """Draw a bar for each rank and step, or for each rank's mean step where there would be too many."""
    devices = with_steps(run)
    if not devices:
        return message(BREAKDOWN_TITLE, NO_STEP)
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
            marks += _step_bar(figures, f"{label}, {step}", top, rows.height)
            longest = max(longest, figures["wall_ns"])
    subtitle = "The parts of each step add up to its wall time."
    return Drawing(
        BREAKDOWN_TITLE, subtitle, time_axis(longest), rows.axis(), rows.y, tuple(marks), _legend(marks), right=76
    )


def summary(run: Run, note: str = "") -> Drawing:
    """Draw a bar for each rank: the mean of its steps."""
    devices = with_steps(run)
    if not devices:
        return message(SUMMARY_TITLE, NO_STEP)
    rank_step_grid = step_grid(devices)
    rows, longest = RowLayout(TALL if len(devices) <= DENSE else FLAT), 0.0
    marks: list[Box | Label] = []
    means = {name: rank_step_grid.mean(name) for name in rank_step_grid.figures}
    every = 1 if len(devices) <= DENSE * 2 else 4
    for row, label in enumerate(rank_labels(run, devices)):
        top = rows.row(label if row % every == 0 else "")
        figures = {name: float(values[row]) for name, values in means.items()}
        marks += _step_bar(figures, label, top, rows.height)
        longest = max(longest, figures["wall_ns"])
    text = note or "Means over the steps. The parts add up to the mean wall time."
    return Drawing(SUMMARY_TITLE, text, time_axis(longest), rows.axis(), rows.y, tuple(marks), _legend(marks), right=76)


_SHORT = {
    "forward_ns": "forward",
    "backward_ns": "backward",
    "optimizer_ns": "optimizer",
    "other_ns": "other",
    "exposed_comm_ns": "exposed comm",
    "exposed_memory_ns": "exposed memory",
    "idle_ns": "idle",
    "wall_ns": "wall",
    "overlapped_comm_ns": "overlapped comm",
}


def _step_cells(figures: dict[str, float]) -> tuple[str, ...]:
    percent = overlap_percent(int(figures["overlapped_comm_ns"]), int(figures["exposed_comm_ns"]))
    return *(milliseconds(figures[name]) for name in _SHORT), "–" if percent is None else f"{percent:.1f} %"


def breakdown_table(run: Run) -> TextTable:
    """Return the nine figures of each rank and step, in ms."""
    devices = with_steps(run)
    rows = [
        (label, step_label(name), *_step_cells({key: float(v[k]) for key, v in device.split.figures.items()}))
        for label, device in zip(rank_labels(run, devices), devices, strict=True)
        for k, name in enumerate(device.split.names)
    ]
    columns = ("rank", "step", *_SHORT.values(), "overlap")
    return TextTable(columns, tuple(rows), 2, "In ms. The parts up to idle add up to wall." if rows else NO_STEP)


def summary_table(run: Run) -> TextTable:
    """Return the nine figures of each rank's mean step, in ms."""
    devices = with_steps(run)
    rank_step_grid = step_grid(devices)
    means = {name: rank_step_grid.mean(name) for name in rank_step_grid.figures}
    rows = [
        (label, *_step_cells({name: float(values[row]) for name, values in means.items()}))
        for row, label in enumerate(rank_labels(run, devices))
    ]
    columns = ("rank", *_SHORT.values(), "overlap")
    return TextTable(columns, tuple(rows), 1, "In ms, means over the steps." if rows else NO_STEP)
