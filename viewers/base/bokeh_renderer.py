"""Draw a view as a Bokeh figure, for its page: each mark has a tooltip."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bokeh.models import Axis as BokehAxis
from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, LinearAxis, LogAxis, Range1d
from bokeh.plotting import figure

from dptrace.core.units import sanitize
from dptrace.viewers.base.marks import Axis, Box, Dot, Drawing, Label, Line
from dptrace.viewers.base.svg import FONT, shorten, text_width
from dptrace.viewers.base.theme import PATTERNS, dark_color, dark_ink

__all__ = ["bokeh_figure"]

_WIDTH = 1000
"""Width of the frame in pixels, assumed when deciding which texts fit into their boxes."""
_LONGEST = 300
"""Width of a row's name, in pixels."""
_TALL = 700
"""Height in pixels from which the figure has ticks above it, too."""
_QUIET, _GRID, _INK, _PAPER, _AXIS = "#5B6472", "#E3E7EC", "#374151", "#FFFFFF", "#9CA3AF"
_HATCHES = {"hatch": "/", "back": "\\", "dots": ".", "bars": "|", "rails": "-"}
"""Bokeh's patterns by the names in theme.PATTERNS."""
_ANCHORS = {"right": ("left", 6), "left": ("right", -6), "center": ("center", 0)}


def bokeh_figure(drawing: Drawing, dark: bool = False) -> figure:
    """Make a figure as wide as its page.

    Args:
        dark: draw for a dark page.

    Names from a trace are data in it; no part of Bokeh reads them as HTML, TeX or a script.
    """
    drawing = _darkened(drawing) if dark else drawing
    scale: dict[str, Any] = {
        "x_axis_type": "log" if drawing.x.log else "linear",
        "y_axis_type": "log" if drawing.y.log else "linear",
    }
    plot = figure(
        height=round(drawing.height) + 60,
        sizing_mode="stretch_width",
        x_range=Range1d(start=drawing.x.low, end=_end(drawing)),
        y_range=Range1d(start=drawing.y.high, end=drawing.y.low),
        tools="pan,wheel_zoom,reset" if drawing.x.log else "",
        toolbar_location="above" if drawing.x.log else None,
        min_border_right=30,
        outline_line_color=None,
        lod_threshold=None,
        **scale,
    )
    plot.toolbar.logo = None
    plot.update(background_fill_color=None, border_fill_color=None)
    _axis(plot.xaxis[0], drawing.x, drawing.x.room(_WIDTH))
    if drawing.height > _TALL:
        plot.add_layout(LogAxis() if drawing.x.log else LinearAxis(), "above")
        _axis(plot.xaxis[0], replace(drawing.x, title=""), drawing.x.room(_WIDTH))
    _axis(plot.yaxis[0], drawing.y, _LONGEST)
    plot.xgrid.grid_line_color = _GRID if drawing.x.grid else None
    plot.ygrid.grid_line_color = _GRID if drawing.y.grid else None
    _boxes(plot, drawing)
    _lines(plot, drawing)
    _dots(plot, drawing, dark_color(_PAPER) if dark else _PAPER)
    _labels(plot, drawing)
    if dark:
        _darken(plot)
    return plot


def _darkened(drawing: Drawing) -> Drawing:
    def other(mark: Box | Dot | Line | Label) -> Box | Dot | Line | Label:
        if not isinstance(mark, Box):
            return replace(mark, color=dark_color(mark.color))
        color, ink = mark.dark or (dark_color(mark.color), dark_ink(mark.color, mark.ink))
        return replace(mark, color=color, ink=ink)

    return replace(drawing, marks=tuple(map(other, drawing.marks)))


def _darken(plot: figure) -> None:
    """Recolor axes, grid and labels for a dark page."""
    for axis in plot.axis:
        axis.update(axis_label_text_color=dark_color(_QUIET), major_label_text_color=dark_color(_INK))
        if axis.axis_line_color is not None:
            axis.axis_line_color = dark_color(_AXIS)
    for grid in plot.grid:
        if grid.grid_line_color is not None:
            grid.grid_line_color = dark_color(_GRID)


def _end(drawing: Drawing) -> float:
    """Return the end of the axis, with room for the texts next to the longest bar."""
    x = drawing.x
    return x.high if x.log else x.high + (x.high - x.low) * drawing.right / _WIDTH


def _untex(text: str) -> str:
    """Keep Bokeh from rendering a label as TeX."""
    for sign in ("$$", "\\(", "\\["):
        text = text.replace(sign, f"{sign[0]} {sign[1]}")
    return sanitize(text)


def _axis(axis: BokehAxis, axis_data: Axis, room: float) -> None:
    axis.ticker = FixedTicker(ticks=[value for value, _ in axis_data.ticks])
    axis.major_label_overrides = {value: _untex(shorten(text, room)) for value, text in axis_data.ticks}
    axis.update(
        axis_label=axis_data.title or None,
        axis_label_text_font_style="normal",
        axis_label_text_color=_QUIET,
        axis_line_color=_AXIS if axis_data.grid else None,
        major_tick_line_color=None,
        minor_tick_line_color=None,
        major_label_text_font=FONT,
        major_label_text_font_size="12px",
        major_label_text_color=_INK,
    )


def _hover(plot: figure, renderer: Any) -> None:
    plot.add_tools(HoverTool(renderers=[renderer], tooltips=[("", "@tip")], point_policy="follow_mouse"))


def _boxes(plot: figure, drawing: Drawing) -> None:
    boxes = [mark for mark in drawing.marks if isinstance(mark, Box)]
    if not boxes:
        return
    source = ColumnDataSource(
        {
            **{side: [getattr(box, side) for box in boxes] for side in ("left", "right", "top", "bottom")},
            "color": [box.color for box in boxes],
            "tip": [sanitize(box.tip) for box in boxes],
            "hatch": [_HATCHES.get(PATTERNS.get(box.color, ""), " ") for box in boxes],
            "text": [_fitting(box, drawing) for box in boxes],
            "ink": [box.ink for box in boxes],
            "x": [(box.left + box.right) / 2 for box in boxes],
            "y": [(box.top + box.bottom) / 2 for box in boxes],
        }
    )
    drawn = plot.quad(
        left="left",
        right="right",
        top="top",
        bottom="bottom",
        fill_color="color",
        line_color=None,
        hatch_pattern="hatch",
        hatch_color="#000000",
        hatch_alpha=0.35,
        hatch_scale=8,
        source=source,
    )
    # On its own ground, since the lines of a pattern would cross it.
    look = {"text_color": "ink", "text_align": "center", "background_fill_color": "color", **_font()}
    plot.text("x", "y", "text", source=source, **look)
    _hover(plot, drawn)


def _fitting(box: Box, drawing: Drawing) -> str:
    room = (drawing.x.place(box.right) - drawing.x.place(box.left)) * _WIDTH
    height = (drawing.y.place(box.bottom) - drawing.y.place(box.top)) * drawing.height
    if height < 11:
        return ""
    return next((text for text in box.texts if text_width(text) + 6 <= room), "")


def _font() -> dict[str, Any]:
    return {"text_font": {"value": FONT}, "text_font_size": "12px", "text_baseline": "middle"}


def _lines(plot: figure, drawing: Drawing) -> None:
    for mark in drawing.marks:
        if isinstance(mark, Line):
            xs, ys = zip(*mark.points, strict=True)
            dash = "dashed" if mark.dash else "solid"
            plot.line(list(xs), list(ys), line_color=mark.color, line_dash=dash, line_width=mark.width)


def _dots(plot: figure, drawing: Drawing, paper: str) -> None:
    dots = [mark for mark in drawing.marks if isinstance(mark, Dot)]
    if not dots:
        return
    source = ColumnDataSource(
        {
            "x": [dot.x for dot in dots],
            "y": [dot.y for dot in dots],
            "color": [dot.color for dot in dots],
            "fill": [paper if dot.hollow else dot.color for dot in dots],
            "marker": [dot.shape for dot in dots],
            "size": [dot.size for dot in dots],
            "tip": [sanitize(dot.tip) for dot in dots],
        }
    )
    drawn = plot.scatter(
        "x", "y", marker="marker", size="size", fill_color="fill", line_color="color", fill_alpha=0.75, source=source
    )
    _hover(plot, drawn)


def _labels(plot: figure, drawing: Drawing) -> None:
    for side, (align, shift) in _ANCHORS.items():
        labels = [mark for mark in drawing.marks if isinstance(mark, Label) and mark.side == side]
        if not labels:
            continue
        source = ColumnDataSource(
            {
                "x": [label.x for label in labels],
                "y": [label.y for label in labels],
                "text": [sanitize(label.text) for label in labels],
                "color": [label.color for label in labels],
                "style": ["bold" if label.bold else "normal" for label in labels],
            }
        )
        plot.text(
            "x",
            "y",
            "text",
            x_offset=shift,
            text_align=align,
            text_color="color",
            text_font_style="style",
            source=source,
            **_font(),
        )
