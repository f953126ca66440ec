"""What a view is: its name, its table, and its picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dptrace.run.run import Run
from dptrace.viewers.base.marks import Drawing
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.views.names import NAMES

__all__ = ["View"]


@dataclass(frozen=True, slots=True)
class View:
    """A view of a run."""

    name: str
    title: str
    table: Callable[[Run], TextTable]
    draw: Callable[[Run], Drawing] | None = None
    """Draws the picture; None for the Gantt chart, which ``gantt.page`` and ``gantt.svg`` draw."""
    in_report: bool = False
    """Whether the report has a section for it, in the order of :data:`~dptrace.viewers.views.names.NAMES`."""
    shows_cross_rank: bool = False
    """Whether it shows the cross-rank analysis, whose notes its page then lists."""

    @property
    def about(self) -> str:
        """What it shows, in one line."""
        return NAMES[self.name]
