"""The Gantt page: one self-contained HTML file of a run, which needs no network and no server.

Bokeh brings the figure, its axes and ranges, wheel, drag and the minimap's window; the intervals themselves are a
raster that static/raster.js draws between Bokeh's canvases, from exact sums (static/lod.js). In a notebook::

    from dptrace.viewers import gantt
    page = gantt.document(dptrace.open("runs/interleaved"))
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.layouts import column
from bokeh.model import Model
from bokeh.models import (
    AdaptiveTicker,
    Axis,
    BasicTickFormatter,
    FixedTicker,
    LinearAxis,
    PanTool,
    Range1d,
    RangeTool,
    WheelZoomTool,
)
from bokeh.models.annotations import BoxAnnotation
from bokeh.plotting import figure

from dptrace.errors import DptraceError
from dptrace.run import Run
from dptrace.viewers.headline import headline
from dptrace.viewers.lanes import Chart, chart
from dptrace.viewers.page import render
from dptrace.viewers.scene import scene

__all__ = ["MAX_INTERVALS", "document", "figures"]

MAX_INTERVALS = 3_000_000
"""What a browser opens from one file in about a second; the file is then about 30 MB."""

FONT = "Inter, 'Segoe UI', 'Liberation Sans', Helvetica, Arial, sans-serif"
_RIGHT = 44
"""Margin in pixels: half of the last tick's label."""
_APART = 3
"""Lengths of a recording that all of them together may span before a page says that their clocks differ."""
_SHORTEST_VIEW = 200
"""Nanoseconds; below the clock of any trace."""
_MINIMAP_ROW, _MINIMAP_LOWEST, _MINIMAP_HIGHEST = 6, 24, 64


def document(run: Run) -> str:
    """Draw a run as one HTML page.

    Raises:
        DptraceError: when there is no step to draw, or more than a page can hold.
    """
    laid_out = chart(run)
    if not laid_out.tracks:
        raise DptraceError(f"{run.path}: there is no step and no interval to draw.")
    if len(laid_out) > MAX_INTERVALS:
        raise DptraceError(_too_many(run, laid_out))
    told = scene(laid_out)
    head = headline(run)
    return render(replace(head, notes=(*head.notes, *_clocks(laid_out))), told, json_item(figures(told), ID("figure")))


def _clocks(laid_out: Chart) -> list[str]:
    """Say why a picture is mostly empty, where the ranks' recordings lie apart."""
    longest = max(int(track.bounds_ns[-1] - track.bounds_ns[0]) for track in laid_out.tracks)
    if laid_out.end_ns < _APART * longest:
        return []
    return ["The ranks' times lie far apart. They are drawn as recorded: the keys [ and ] go from step to step."]


def _too_many(run: Run, laid_out: Chart) -> str:
    steps = max(len(track.steps) for track in laid_out.tracks)
    ranks = len({track.rank for track in laid_out.tracks})
    return (
        f"{run.path}: {len(laid_out):,} intervals to draw ({ranks} ranks, {steps} steps), and one page holds "
        f"{MAX_INTERVALS:,}. Draw fewer ranks or steps, for example: --ranks 0,1 or --steps FIRST:LAST."
    )


def figures(told: dict[str, Any]) -> Model:
    """Make the Bokeh figures for a scene: the Gantt's frame with its axes, and the minimap above it."""
    pad = max(told["end"] // 250, _SHORTEST_VIEW)
    low, high = -pad, told["end"] + pad
    shared = Range1d(start=low, end=high, bounds=(low, high), min_interval=_SHORTEST_VIEW)
    return column(_minimap(told, shared, low, high), _main(told, shared), sizing_mode="stretch_width", spacing=2)


def _frame(name: str, height: int, left: int, x_range: Range1d, **options: Any) -> figure:
    plot = figure(
        name=name,
        frame_height=height,
        sizing_mode="stretch_width",
        x_range=x_range,
        y_range=Range1d(start=height, end=0),
        tools="",
        toolbar_location=None,
        lod_threshold=None,
        min_border_left=left,
        min_border_right=_RIGHT,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color="#D5DAE1",
        **options,
    )
    # Bokeh warns of a figure without a glyph; ours come from a raster that it does not know.
    plot.segment([], [], [], [])
    return plot


def _main(told: dict[str, Any], shared: Range1d) -> figure:
    layout = told["layout"]
    plot = _frame("main", layout["height"], layout["left"], shared, x_axis_location="above")
    wheel, pan = WheelZoomTool(dimensions="width", speed=1 / 450), PanTool(dimensions="width")
    plot.add_tools(wheel, pan)
    plot.toolbar.active_scroll, plot.toolbar.active_drag = wheel, pan
    plot.xgrid.grid_line_color, plot.ygrid.grid_line_color = "#E3E7EC", None
    axis = plot.xaxis[0]
    axis.ticker = AdaptiveTicker(base=10, mantissas=[1, 2, 5], desired_num_ticks=9)
    axis.formatter = BasicTickFormatter(name="time")
    axis.update(
        major_label_text_font_size="12px",
        major_label_text_color="#374151",
        major_label_text_font=FONT,
        axis_line_color="#D5DAE1",
        major_tick_line_color="#9CA3AF",
        minor_tick_line_color=None,
    )
    rows = {row["y"] + row["h"] / 2: row["label"] for row in (*layout["rows"], *layout["strips"])}
    _labels(plot.yaxis[0], rows, "12px", "normal", "#5B6472")
    heads = {row["y"] + row["h"] / 2: told["tracks"][row["track"]]["label"] for row in _heads(layout)}
    bold = LinearAxis()
    plot.add_layout(bold, "left")
    _labels(bold, heads, "13px", "bold", "#111827")
    for block in layout["blocks"][::2]:
        band = BoxAnnotation(
            top=block["y"] - 4,
            bottom=block["y"] + block["h"] + 4,
            fill_color="#F5F7FA",
            fill_alpha=1,
            line_color=None,
            level="image",
        )
        plot.add_layout(band)
    return plot


def _heads(layout: dict[str, Any]) -> list[dict[str, Any]]:
    """Give the first row of each GPU, beside which its name stands."""
    tops = {block["y"] for block in layout["blocks"]}
    return [row for row in layout["rows"] if row["y"] in tops]


def _labels(axis: Axis, labels: dict[float, str], size: str, style: str, color: str) -> None:
    axis.update(
        ticker=FixedTicker(ticks=sorted(labels)),
        major_label_overrides=labels,
        major_label_text_font=FONT,
        major_label_text_font_size=size,
        major_label_text_font_style=style,
        major_label_text_color=color,
        major_tick_line_color=None,
        minor_tick_line_color=None,
        axis_line_color=None,
    )


def _minimap(told: dict[str, Any], shared: Range1d, low: int, high: int) -> figure:
    height = min(max(_MINIMAP_ROW * len(told["tracks"]), _MINIMAP_LOWEST), _MINIMAP_HIGHEST)
    mini = _frame("mini", height, told["layout"]["left"], Range1d(start=low, end=high))
    mini.xaxis.visible = mini.yaxis.visible = False
    mini.grid.grid_line_color = None
    window = RangeTool(x_range=shared)
    window.overlay.update(
        inverted=True,
        fill_color="#FFFFFF",
        fill_alpha=0.62,
        line_color="#111827",
        line_alpha=0.8,
        line_width=1.5,
        line_dash="solid",
    )
    mini.add_tools(window)
    return mini
