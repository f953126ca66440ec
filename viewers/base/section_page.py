"""A page of sections, each a title, a picture and a table: what the views other than the Gantt chart stand on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.layouts import column
from bokeh.resources import Resources
from jinja2 import Environment
from markupsafe import Markup

from dptrace.core.text import sanitize
from dptrace.version import __version__
from dptrace.viewers.base.bokeh_renderer import bokeh_figure
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.marks import Drawing, without_tips
from dptrace.viewers.base.page import bundle, policy, static
from dptrace.viewers.base.svg_renderer import legend_svg, svg
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.base.theme import CHROME, css

__all__ = ["Section", "bokeh_script", "chart_plots", "environment", "live_charts", "section_page", "sections"]

_NOTHING = Markup("")
FEW_ROWS = 12
"""Of a table that stands open under its picture."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page."""

    name: str
    title: str
    picture: Markup = _NOTHING
    """SVG or a place for a figure; everything in it is escaped already."""
    cells: TextTable | None = None
    about: str = ""
    open: bool = False
    """Whether the table stands open however long it is."""

    @property
    def folded(self) -> bool:
        """Tell whether the table is shown only when asked for."""
        return bool(self.cells and self.picture and len(self.cells.rows) > FEW_ROWS and not self.open)


@cache
def environment() -> Environment:
    """Give templates that escape all that is put in, and whose islands keep Bokeh's order of keys."""
    made = Environment(autoescape=True, finalize=lambda value: sanitize(value) if type(value) is str else value)
    made.policies["json.dumps_kwargs"] = {"sort_keys": False, "separators": (",", ":")}
    return made


def sections(parts: Sequence[Section]) -> Markup:
    """Write sections one below the other."""
    return Markup(environment().from_string(static("base", "sections.html")).render(sections=parts))


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
        places: by the id of its place, a chart, or several that stand one below the other.
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


def bokeh_script() -> list[str]:
    """Give Bokeh's own script."""
    return list(Resources(mode="inline", components=["bokeh"], minified=True, log_level="error").js_raw)


def _dark_rule() -> str:
    """Give the colours of a dark page that no script has to choose, and none of paper."""
    colors = "".join(f"--{key}:{value};" for key, value in CHROME["dark"].items())
    rule = f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme]){{color-scheme:dark;{colors}}}}}"
    return f"{rule}\n"


def section_page(head: Headline, content: Markup, plots: Mapping[str, Any] | None = None, script: str = "") -> str:
    """Fill the page, which is dark where the system asks for it.

    Args:
        content: what stands below the notes; HTML, so everything in it must be escaped already.
        plots: what :func:`chart_plots` returns; a page without plots runs no script at all.
        script: JavaScript to run beside the one that draws the plots; it hears of each drawing by the event "drawn".
    """
    scripts = [*bokeh_script(), *([script] if script else []), bundle("base", "figure.js")] if plots else []
    return (
        environment()
        .from_string(static("base", "plain.html"))
        .render(
            head=head,
            content=content,
            plots=plots or {},
            version=__version__,
            policy=policy(scripts) if scripts else "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
            styles=Markup(css() + _dark_rule() + static("base", "plain.css")),
            scripts=[Markup(script) for script in scripts],
        )
    )
