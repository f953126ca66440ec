"""The list of all views: each with its name, its picture and its table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from dptrace.errors import UsageError
from dptrace.run.run import Run
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.marks import Drawing
from dptrace.viewers.base.table import TextTable, print_text_table
from dptrace.viewers.terminal.split_tables import plain
from dptrace.viewers.views import bandwidth, buckets, heatmap, pipeline
from dptrace.viewers.views import cost_bars as costs
from dptrace.viewers.views import step_bars as steps
from dptrace.viewers.views.names import NAMES

__all__ = ["VIEWS", "View", "print_view", "view_named"]


@dataclass(frozen=True, slots=True)
class View:
    """A view of a run."""

    name: str
    title: str
    table: Callable[[Run], TextTable]
    draw: Callable[[Run], Drawing] | None = None
    """Draws the picture; None for the Gantt chart, which ``gantt.page`` and ``gantt.svg`` draw."""

    @property
    def about(self) -> str:
        """What it shows, in one line."""
        return NAMES[self.name]


_ALL = (
    View("gantt", "Gantt chart", steps.summary_table),
    View("summary", steps.SUMMARY_TITLE, steps.summary_table, steps.summary),
    View("breakdown", steps.BREAKDOWN_TITLE, steps.breakdown_table, steps.breakdown),
    View("heatmap", heatmap.TITLE, heatmap.heatmap_table, heatmap.heatmap),
    View("communication", costs.COMMUNICATION_TITLE, costs.communication_table, costs.communication),
    View("bandwidth", bandwidth.TITLE, bandwidth.bandwidth_table, bandwidth.bandwidth),
    View("buckets", buckets.TITLE, buckets.buckets_table, buckets.buckets),
    View("idle", costs.IDLE_TITLE, costs.idle_table, costs.idle),
    View("pipeline", pipeline.TITLE, pipeline.schedule_table, pipeline.schedule),
    View("findings", costs.FINDINGS_TITLE, costs.findings_table, costs.findings),
)
VIEWS: dict[str, View] = {view.name: view for view in _ALL}
"""Views by name, in the order of ``--view list``."""


def view_named(name: str) -> View:
    """Return a view by its name.

    Raises:
        UsageError: no view has that name; the message lists all views.
    """
    if name not in VIEWS:
        raise UsageError(f"unknown view {name!r}; choose from {', '.join(VIEWS)}.")
    return VIEWS[name]


def print_view(view: View, run: Run, console: Console) -> None:
    """Print the headline and the view's table; the Gantt chart has its own drawing for the terminal."""
    head = headline(run)
    console.print(plain(" · ".join((head.title, *head.facts))), style="bold")
    print_text_table(view.table(run), view.title, console)
    for note in run.notes:
        console.print(plain(f"! {note}"))
