"""A bar of the parts of a step, and its row in a table: shared by the views of steps."""

from __future__ import annotations

from dptrace.analysis.per_gpu.labels import PART_LABELS
from dptrace.analysis.per_gpu.split import FIGURES, overlap_percent
from dptrace.core.units import milliseconds
from dptrace.viewers.base import theme
from dptrace.viewers.views.bars import Bar

__all__ = ["COLUMNS", "step_bar", "step_cells"]

_ORDER = (*(name for name in FIGURES if name != "overlapped_comm_ns"), "overlapped_comm_ns")
COLUMNS = (*(name.removesuffix("_ns").replace("_", " ") for name in _ORDER), "overlap")
"""Headings of the nine figures of a step and their overlap."""


def step_bar(figures: dict[str, float], tick: str, name: str, head: str = "") -> Bar:
    """Return the bar of a step's figures in ns; its text is the wall time, which its parts add up to."""
    parts = [
        (PART_LABELS[part], figures[f"{part.name.lower()}_ns"], color) for part, color in theme.PART_COLORS.items()
    ]
    return Bar(tick, name, parts, under=figures["overlapped_comm_ns"], head=head)


def step_cells(figures: dict[str, float]) -> tuple[str, ...]:
    """Return the texts of a step's figures, one for each of :data:`COLUMNS`."""
    percent = overlap_percent(int(figures["overlapped_comm_ns"]), int(figures["exposed_comm_ns"]))
    return *(milliseconds(figures[name]) for name in _ORDER), "–" if percent is None else f"{percent:.1f} %"
