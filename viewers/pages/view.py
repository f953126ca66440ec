"""A view as a page or as SVG, the Gantt chart included."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dptrace.core.numbers import Number
from dptrace.errors import UsageError
from dptrace.run.run import Run
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.page import Section, notebook_frame, pictures, section_page, sections
from dptrace.viewers.base.svg import WIDTH, svg
from dptrace.viewers.gantt.page import document as page
from dptrace.viewers.gantt.page.document import rows_height
from dptrace.viewers.pages.gantt_svg import WIDTH as GANTT_WIDTH
from dptrace.viewers.pages.gantt_svg import gantt_svg
from dptrace.viewers.views.registry import View, view_named

if TYPE_CHECKING:
    from dptrace.replay.critical_path import CriticalPath

_FRAME_WIDTH = 900
"""Width in pixels of a picture for a frame, which is narrower than a window: its texts keep their size."""


def document(view: View, run: Run, embedded: bool = False, path: CriticalPath | None = None) -> str:
    """Draw a run as one HTML page.

    Args:
        path: a critical path to draw on the Gantt chart.
        embedded: for a frame in another page: the wheel scrolls that page, and the numbers are folded.

    Raises:
        UsageError: a view other than the Gantt chart was to draw a critical path.
        DptraceError: the Gantt chart has no step to draw, or more than a page can hold.
    """
    if view.draw is None:
        return page.document(run, embedded=embedded, path=path)
    if path is not None:
        raise UsageError(f"A critical path is drawn on the Gantt chart, not on {view.name!r}.")
    drawing = view.draw(run)
    head = replace(headline(run), notes=(*run.notes, *(run.cross_rank.notes if view.shows_cross_rank else ())))
    about = drawing.message or drawing.subtitle
    cells = view.table(run)
    # Without a picture, its message already says what the note of the table would.
    shown = pictures(drawing, _FRAME_WIDTH if embedded else WIDTH)
    part = Section(view.name, drawing.title, shown, cells if cells.rows else None, about, not embedded)
    return section_page(head, sections([part]))


def picture(view: View, run: Run, width: int | None = None) -> str:
    """Draw a run as SVG, which needs no browser.

    Args:
        width: in pixels, of a picture that is to be narrower than usual; its texts keep their size.
    """
    if view.draw is None:
        return gantt_svg(run, width=min(width or GANTT_WIDTH, GANTT_WIDTH))
    return svg(view.draw(run), run=headline(run).line, width=min(width or WIDTH, WIDTH))


# A view in a notebook: the same page, in a frame that can reach neither the notebook nor the network.


_NAME = "{}: {} of {} ({:.1f} MB); a notebook shows it, save(path) writes it."
_ABOVE_ROWS, _AROUND = 440, 280
"""Height in pixels of what is above the rows of a Gantt chart, and of title, legend and margins of another picture."""
_LEAST, _MOST_ROWS, _MOST = 420, 860, 1_600
"""Heights of a view in pixels: at least, at most of one with a row for each GPU, and of any other."""
_HEIGHTS = Number(1, 100_000, whole=True)
"""Least height of a frame in pixels, and greatest, of a Gantt chart, whose rows scroll, and of another picture."""


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
        return notebook_frame(self.page, self.view, self.height, saves=True)

    def save(self, path: str | Path) -> None:
        """Write the page to a file, replacing an existing one."""
        Path(path).write_text(self.page, encoding="utf-8")


def show(run: Run, name: str, height: int | None = None, path: CriticalPath | None = None) -> NotebookPage:
    """Draw a view of a run for a notebook; see :func:`dptrace.show`."""
    view = view_named(name)
    if height is not None:
        _HEIGHTS.check(height, "height")
    drawn = document(view, run, True, path)
    return NotebookPage(name, run.path, drawn, _height(view, run) if height is None else height)


def _height(view: View, run: Run) -> int:
    """Return the height of a frame for a view: of its picture or rows, and of what stands around them."""
    if view.draw is None:
        return min(max(rows_height(run) + _ABOVE_ROWS, _LEAST), _MOST_ROWS)
    return round(min(max(view.draw(run).height + _AROUND, _LEAST), _MOST))
