"""A view as a page or as SVG, the Gantt chart included."""

from __future__ import annotations

from dataclasses import replace

from dptrace.run.run import Run
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.section_page import Section, chart_plots, live_charts, section_page, sections
from dptrace.viewers.base.svg_renderer import svg
from dptrace.viewers.gantt import page
from dptrace.viewers.gantt.svg import gantt_svg
from dptrace.viewers.views.registry import View

__all__ = ["document", "picture"]


def document(view: View, run: Run, embedded: bool = False) -> str:
    """Draw a run as one HTML page.

    Args:
        embedded: for a frame in another page: the wheel scrolls that page, and the numbers are folded.

    Raises:
        DptraceError: the Gantt chart has no step to draw, or more than a page can hold.
    """
    if view.draw is None:
        return page.document(run, embedded=embedded)
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
