"""All views by name; a view's module is imported when the view is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

from rich.console import Console

from dptrace.errors import UsageError
from dptrace.run.run import Run
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.marks import Drawing
from dptrace.viewers.base.table import TextTable, plain, print_text_table
from dptrace.viewers.views.names import MODULES, NAMES


@dataclass(frozen=True, slots=True)
class View:
    """A view of a run."""

    name: str
    title: str
    table: Callable[[Run], TextTable]
    draw: Callable[[Run], Drawing] | None = None
    """Draws the picture; None for the Gantt chart, which ``viewers/gantt`` draws."""
    in_report: bool = False
    """Whether the report has a section for it, in the order of :data:`~dptrace.viewers.views.names.NAMES`."""
    concerns: Callable[[Run], bool] = lambda run: True
    """Whether a run has what it shows: a report has no section for it otherwise."""
    shows_cross_rank: bool = False
    """Whether it shows the cross-rank analysis, whose notes its page then lists."""

    @property
    def about(self) -> str:
        """What it shows, in one line."""
        return NAMES[self.name]


class _Views(Mapping[str, View]):
    """The views by name: each is the ``NAME_VIEW`` of its module."""

    def __getitem__(self, name: str) -> View:
        if name not in NAMES:
            raise KeyError(name)
        view: View = getattr(import_module(MODULES[name]), f"{name.upper()}_VIEW")
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


VIEWS: Mapping[str, View] = _Views()
"""Views by name, in the order of ``--view list``."""


def view_named(name: str) -> View:
    """Return a view by its name.

    Raises:
        UsageError: no view has that name; the message lists all views.
    """
    if name not in NAMES:
        raise UsageError(f"unknown view {name!r}; choose from {', '.join(NAMES)}.")
    return VIEWS[name]


def print_view(view: View, run: Run, console: Console) -> None:
    """Print the headline and the view's table; the Gantt chart has its own drawing for the terminal."""
    console.print(plain(headline(run).line), style="bold")
    print_text_table(view.table(run), view.title, console)
    for note in run.notes:
        console.print(plain(f"! {note}"))
