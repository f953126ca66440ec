"""A bar of the parts of a step, and its row in a table: shared by the views of steps."""

from __future__ import annotations

from collections.abc import Sequence

from dptrace.analysis.per_gpu.labels import OVERLAPPED_LABEL, PART_LABELS
from dptrace.analysis.per_gpu.split import Part, overlap_percent
from dptrace.core.units import milliseconds
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Box, Entry, Label
from dptrace.viewers.views.bars import stack

__all__ = ["COLUMNS", "part_legend", "step_bar", "step_cells"]

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


def step_bar(figures: dict[str, float], label: str, top: float, height: float) -> list[Box | Label]:
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


def part_legend(marks: Sequence[object]) -> tuple[Entry, ...]:
    """Return the legend entries of what is drawn."""
    used = {mark.color for mark in marks if isinstance(mark, Box)}
    return tuple(entry for entry in _PART_LEGEND if entry.color in used)


_COLUMN_NAMES = {
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


COLUMNS = (*_COLUMN_NAMES.values(), "overlap")
"""Headings of the nine figures of a step and their overlap."""


def step_cells(figures: dict[str, float]) -> tuple[str, ...]:
    """Return the texts of a step's figures, one for each of :data:`COLUMNS`."""
    percent = overlap_percent(int(figures["overlapped_comm_ns"]), int(figures["exposed_comm_ns"]))
    return *(milliseconds(figures[name]) for name in _COLUMN_NAMES), "–" if percent is None else f"{percent:.1f} %"
