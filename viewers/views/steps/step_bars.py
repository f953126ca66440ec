"""A bar of the parts of a step, and its row in a table: shared by the views of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from dptrace.analysis.cross_rank.transfers import exposed_parts
from dptrace.analysis.per_gpu.split import EXPOSED_LABELS, FIGURES, PART_LABELS, Part, overlap_percent, waiting_label
from dptrace.core.units import milliseconds
from dptrace.viewers.base import theme
from dptrace.viewers.charts.bars import Bar

__all__ = ["StepFigures", "columns", "exposed_bar_parts", "shown_figures", "step_bar", "step_cells"]

StepFigures: TypeAlias = Mapping[str, float | None]
"""The nine figures of a step and those of waiting, in ns; an unknown wait is None."""

_ORDER = (*FIGURES[:5], "exposed_wait_ns", "exposed_unmatched_ns", *FIGURES[6:], "overlapped_comm_ns")
_HEADINGS = {"exposed_wait_ns": "waiting", "exposed_unmatched_ns": "incomplete"}


def step_bar(figures: StepFigures, tick: str, name: str, head: str = "", rank: int | None = None) -> Bar:
    """Return the bar of a step's figures; its text is the wall time, which its parts add up to.

    Args:
        rank: the rank that the step waits for, if one stands out.
    """
    parts: list[tuple[str, float, str]] = []
    for part, color in theme.PART_COLORS.items():
        ns = figures[f"{part.name.lower()}_ns"] or 0
        parts += exposed_bar_parts(ns, figures, rank) if part is Part.EXPOSED_COMM else [(PART_LABELS[part], ns, color)]
    return Bar(tick, name, parts, under=figures["overlapped_comm_ns"] or 0, head=head)


def exposed_bar_parts(exposed_ns: float, waits: StepFigures, rank: int | None) -> Iterator[tuple[str, float, str]]:
    """Yield exposed communication as parts of a bar: transfer, what lacks a rank, and waiting."""
    parts = exposed_parts(exposed_ns, waits)
    wait = parts.pop("exposed_wait_ns", None)
    yield from ((EXPOSED_LABELS[name], ns, theme.EXPOSED) for name, ns in parts.items())
    if wait is not None:
        yield waiting_label(rank), wait, theme.WAITING


def shown_figures(rows: Sequence[StepFigures]) -> tuple[str, ...]:
    """Return the figures that a table of steps shows: waiting where any is known, missing ranks where there are any."""
    known = any(row["exposed_wait_ns"] is not None for row in rows)
    missing = any(row["exposed_unmatched_ns"] for row in rows)
    left_out = {name for name, shown in zip(_HEADINGS, (known, missing), strict=True) if not shown}
    return tuple(name for name in _ORDER if name not in left_out)


def columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the headings of figures by their names, and of the overlap."""
    return *(_HEADINGS.get(name, name.removesuffix("_ns").replace("_", " ")) for name in names), "overlap"


def step_cells(figures: StepFigures, names: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of a step's figures and overlap; ? for a wait that is not known."""
    percent = overlap_percent(int(figures["overlapped_comm_ns"] or 0), int(figures["exposed_comm_ns"] or 0))
    cells = ("?" if (ns := figures[name]) is None else milliseconds(ns) for name in names)
    return *cells, "–" if percent is None else f"{percent:.1f} %"
