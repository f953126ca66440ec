"""A view in a notebook: the same page, in a frame that can reach neither the notebook nor the network."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from dptrace.run.run import Run
from dptrace.viewers.pages.view import document
from dptrace.viewers.views.registry import view_named

__all__ = ["NotebookPage", "show"]

_NAME = "{}: {} of {} ({:.1f} MB); a notebook shows it, save(path) writes it."


@dataclass(frozen=True)
class NotebookPage:
    """A page that a notebook shows when it is the last value of a cell."""

    view: str
    run: str
    page: str
    """The HTML of the page."""
    height: int
    """Height of the frame, in pixels."""

    def __repr__(self) -> str:
        return _NAME.format(type(self).__name__, self.view, self.run, len(self.page) / 1e6)

    def _repr_html_(self) -> str:
        # Without allow-same-origin the page's scripts can't reach the notebook.
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{escape(self.page)}" width="100%" height="{self.height}" '
            f'title="{escape(self.view)}" style="border:1px solid #d5dae1;border-radius:6px"></iframe>'
        )

    def save(self, path: str | Path) -> None:
        """Write the page to a file, replacing an existing one."""
        Path(path).write_text(self.page, encoding="utf-8")


def show(run: Run, name: str, height: int) -> NotebookPage:
    """Draw a view of a run for a notebook.

    Raises:
        UsageError: there is no view of that name.
        DptraceError: there is nothing to draw, or too much for a page.
    """
    return NotebookPage(name, run.path, document(view_named(name), run), height)
