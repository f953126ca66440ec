"""A page of sections, each with a title, a picture and a table: the shell of all pages but the Gantt chart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.layouts import column

from dptrace.viewers.base.bokeh_renderer import bokeh_figure
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.marks import Drawing, without_tips
from dptrace.viewers.base.page import Markup, bokeh_scripts, bundle, environment, page, static
from dptrace.viewers.base.svg_renderer import legend_svg, svg
from dptrace.viewers.base.table import TextTable

__all__ = ["Section", "chart_plots", "live_charts", "section_page", "sections"]

_NOTHING = Markup("")
FEW_ROWS = 12
"""Most rows of a table that is shown open under its picture."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page."""

    name: str
    title: str
    picture: Markup = _NOTHING
    """SVG or the place of a figure; HTML, escaped already."""
    cells: TextTable | None = None
    about: str = ""
    open: bool | None = None
    """Show the table open, however long it is, or folded; without, a long one is folded."""

    @property
    def folded(self) -> bool:
        """Whether the table is folded."""
        if not self.cells or not self.picture:
            return False
        return len(self.cells.rows) > FEW_ROWS if self.open is None else not self.open


def sections(parts: Sequence[Section]) -> Markup:
    """Render sections as HTML."""
    return Markup(environment().get_template("base/sections.html").render(sections=parts))


def live_charts(drawings: Drawing | Sequence[Drawing], place: str = "figure") -> Markup:
    """Return the place of a figure under its legend, and the same charts as SVG for paper and without scripts.

    Args:
        drawings: the charts, which share the legend of the last one; those that only hold a message are left out.
        place: id of the place, the key of the figure in ``plots``.
    """
    drawn = [d for d in ([drawings] if isinstance(drawings, Drawing) else drawings) if not d.message]
    if not drawn:
        return _NOTHING
    stills = "".join(svg(without_tips(drawing), heading=False) for drawing in drawn)
    return Markup('<div class="live">{}<div id="{}"></div></div><div class="still">{}</div>').format(
        Markup(legend_svg(drawn[-1], dark=True) if drawn[-1].legend else ""), place, Markup(stills)
    )


def chart_plots(
    places: Mapping[str, Drawing | Sequence[Drawing]], make: Callable[[Drawing, bool], Any] = bokeh_figure
) -> dict[str, Any]:
    """Return Bokeh's ``json_item`` of each figure, for a light and for a dark page, by ``PLACE-light``, ``PLACE-dark``.

    Args:
        places: by the id of its place, a chart, or several that are drawn one below the other.
        make: makes the figure of a chart, for a dark page or not.
    """
    plots = {}
    for place, drawings in places.items():
        drawn = [d for d in ([drawings] if isinstance(drawings, Drawing) else drawings) if not d.message]
        for look, dark in (("light", False), ("dark", True)) if drawn else ():
            figures = [make(drawing, dark) for drawing in drawn]
            figure = figures[0] if len(figures) == 1 else column(figures, sizing_mode="stretch_width")
            plots[f"{place}-{look}"] = json_item(figure, ID(place))
    return plots


def section_page(head: Headline, content: Markup, plots: Mapping[str, Any] | None = None, script: str = "") -> str:
    """Render the page; it is dark where the system asks for it.

    Args:
        content: content below the notes; HTML, escaped already.
        plots: what :func:`chart_plots` returns; a page without plots runs no script at all.
        script: further JavaScript; it can listen to the event "drawn", whose detail is the list of Bokeh views.
    """
    scripts = [*bokeh_scripts(), *([script] if script else []), bundle("base", "figure.js")] if plots else []
    return page(head, static("base", "plain.css"), scripts, content=content, plots=plots or {})
