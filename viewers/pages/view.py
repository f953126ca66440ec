"""A view as a page or as SVG, the Gantt chart included."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dptrace.errors import UsageError
from dptrace.run.run import Run
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.section_page import Section, chart_plots, live_charts, section_page, sections
from dptrace.viewers.base.svg_renderer import svg
from dptrace.viewers.gantt.page import document as page
from dptrace.viewers.gantt.svg.chart import gantt_svg
from dptrace.viewers.views.registry import View

if TYPE_CHECKING:
    from dptrace.replay.critical_path import CriticalPath

__all__ = ["document", "picture"]


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
    part = Section(view.name, drawing.title, live_charts(drawing), cells if cells.rows else None, about, not embedded)
    return section_page(head, sections([part]), chart_plots({"figure": drawing}))


def picture(view: View, run: Run) -> str:
    """Draw a run as SVG, which needs no browser."""
    if view.draw is None:
        return gantt_svg(run)
    head = headline(run)
    return svg(view.draw(run), run=" · ".join((head.title, *head.facts)))
