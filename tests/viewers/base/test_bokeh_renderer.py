"""Drawings as Bokeh figures."""

from __future__ import annotations

from bokeh.models import ColumnDataSource, Range1d
from bokeh.models.renderers import GlyphRenderer

from dptrace.viewers.base.bokeh_renderer import bokeh_figure
from dptrace.viewers.base.marks import Axis, Box, Drawing, linear_axis
from tests.support.view_cases import drawn


def test_bokeh_shows_every_mark() -> None:
    """The same marks are glyphs in the same place, with the same tooltips."""
    plot = bokeh_figure(drawn())
    sources = [one.data_source for one in plot.renderers if isinstance(one, GlyphRenderer)]
    data = [source.data for source in sources if isinstance(source, ColumnDataSource)]

    assert ["a tip"] == next(list(one["tip"]) for one in data if "left" in one)
    assert ["/"] == next(list(one["hatch"]) for one in data if "left" in one)
    assert ["circle", "square", "triangle", "diamond"] == next(list(one["marker"]) for one in data if "marker" in one)
    assert {"beside", "before"} <= {text for one in data for text in one.get("text", [])}
    assert isinstance(plot.y_range, Range1d)
    assert (20, 0) == (plot.y_range.start, plot.y_range.end)


def test_tex_is_not_set() -> None:
    """A row's name is shown as it is, not as a formula."""
    y = Axis(0, 20, ((10, "$$\\frac12$$ \\(x\\) \\[y\\]"),))
    plot = bokeh_figure(Drawing("t", "", linear_axis(0, 1, ""), y, 20, (Box(0, 1, 0, 20, "#000000"),)))
    (label,) = plot.yaxis[0].major_label_overrides.values()

    assert not any(sign in str(label) for sign in ("$$", "\\(", "\\["))
