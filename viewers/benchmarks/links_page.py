"""The page of measured links: time and bus bandwidth over message size, both on log axes, one file without network.

from dptrace.viewers.benchmarks import links_page
page = links_page.document(json.load(open("links.json")))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, FixedTicker, HoverTool
from bokeh.plotting import figure
from bokeh.resources import Resources
from jinja2 import Environment
from markupsafe import Markup

from dptrace.core.text import sanitize
from dptrace.version import __version__
from dptrace.viewers.base.page import policy, static
from dptrace.viewers.benchmarks.links_table import COLUMNS, LABELS, facts, nearest_link_sentence, rows, size, topology

__all__ = ["columns", "document", "figures"]

_STYLE = {
    "all_reduce": ("#0072B2", "circle"),
    "all_gather": ("#009E73", "square"),
    "reduce_scatter": ("#D55E00", "triangle"),
    "all_to_all": ("#A8438A", "diamond"),
    "broadcast": ("#B58900", "inverted_triangle"),
    "send_recv": ("#4B5563", "hex"),
}
"""Colours that all kinds of color vision tell apart (after Okabe and Ito), and a mark for each."""

_MICROSECONDS = 1e6
_DRAW = """
const island = (id) => JSON.parse(document.getElementById(id).textContent);
Promise.all(["time", "rate"].map((id) => Bokeh.embed.embed_item(island(id + "-plot"), id))).then(() => {
  document.documentElement.dataset.ready = "1";
});
"""


def columns(found: Mapping[str, Any]) -> dict[str, Any]:
    """Give one collective's measurements as columns: bytes, µs with their quarters, the fit, and GB/s."""
    measured = found["measured"]
    return {
        "bytes": [row["bytes"] for row in measured],
        "size": [size(row["bytes"]) for row in measured],
        "us": [row["median_s"] * _MICROSECONDS for row in measured],
        "low": [row["quarter_s"] * _MICROSECONDS for row in measured],
        "high": [row["three_quarters_s"] * _MICROSECONDS for row in measured],
        "fitted": [row["fitted_s"] * _MICROSECONDS if "fitted_s" in row else None for row in measured],
        "busbw": [row["busbw_gbps"] for row in measured],
        "algbw": [row["algbw_gbps"] for row in measured],
        "count": [row["count"] for row in measured],
    }


def figures(content: Mapping[str, Any]) -> tuple[figure, figure]:
    """Draw both charts: medians with their middle half, the fit and its crossover; and busbw against a known link."""
    time, rate = _empty(content, "time of one call"), _empty(content, "bus bandwidth, GB/s")
    tip = [
        ("", "$name"),
        ("size", "@size"),
        ("median", "@us{0,0.0} µs"),
        ("middle half", "@low{0,0.0}–@high{0,0.0} µs"),
    ]
    tip += [("fit", "@fitted{0,0.0} µs"), ("busbw", "@busbw{0.000} GB/s"), ("timings", "@count")]
    drawn: dict[str, list[Any]] = {"time": [], "rate": []}
    for kind, found in content["collectives"].items():
        color, mark = _STYLE.get(kind, ("#000000", "x"))
        label = LABELS.get(kind, sanitize(kind))
        # A source each: the two charts are two documents.
        source, other = ColumnDataSource(columns(found)), ColumnDataSource(columns(found))
        common: dict[str, Any] = {"color": color, "legend_label": label}
        time.segment("bytes", "low", "bytes", "high", source=source, line_width=2, line_alpha=0.45, **common)
        if found["fit"] is not None:
            time.line("bytes", "fitted", source=source, line_width=1.5, **common)
            _crossover(time, found["fit"], common)
        points: dict[str, Any] = {"size": 7, "marker": mark, "name": label, **common}
        drawn["time"].append(time.scatter("bytes", "us", source=source, **points))
        rate.line("bytes", "busbw", source=other, line_width=1.5, **common)
        drawn["rate"].append(rate.scatter("bytes", "busbw", source=other, **points))
    least = min((found["measured"][0]["bytes"] for found in content["collectives"].values()), default=1)
    _known(rate, content["nearest"], least)
    for plot, name in ((time, "time"), (rate, "rate")):
        plot.add_tools(HoverTool(tooltips=tip, renderers=drawn[name]))
        _finish(plot)
    return time, rate


def _empty(content: Mapping[str, Any], what: str) -> figure:
    tools = "pan,wheel_zoom,box_zoom,reset,save"
    plot = figure(
        x_axis_type="log",
        y_axis_type="log",
        height=460,
        sizing_mode="stretch_width",
        tools=tools,
        toolbar_location="above",
    )
    plot.xaxis.axis_label, plot.yaxis.axis_label = "message", what
    ticks = [4**k * 1024 for k in range(-2, 11)]
    plot.xaxis.ticker = FixedTicker(ticks=ticks, minor_ticks=[])
    plot.xaxis.major_label_overrides = {tick: size(tick) for tick in ticks}
    names: dict[float | str, Any] = {}
    if what.startswith("time"):
        names = {10**k: f"{10**k} µs" for k in range(3)} | {10 ** (k + 3): f"{10**k} ms" for k in range(3)}
        names |= {10 ** (k + 6): f"{10**k} s" for k in range(3)}
    else:
        names = {10.0**k: f"{10.0**k:g}" for k in range(-6, 4)}
    plot.yaxis.ticker = FixedTicker(ticks=[float(name) for name in names], minor_ticks=[])
    plot.yaxis.major_label_overrides = names
    return plot


def _crossover(plot: figure, fit: Mapping[str, Any], common: Mapping[str, Any]) -> None:
    """Mark n* by a ring on the line."""
    if not fit["crossover_bytes"]:
        return
    x, y = [fit["crossover_bytes"]], [fit["crossover_s"] * _MICROSECONDS]
    plot.scatter(x, y, size=17, fill_alpha=0, line_width=2, **common)


def _known(plot: figure, near: Mapping[str, Any] | None, first: int) -> None:
    """Draw the nominal speed of the interconnect that the links are like, named from *first* bytes on."""
    if near is None:
        return
    rate = near["bytes_per_s"] / 1e9
    plot.hspan([rate], line_dash="dashed", line_color="#57606a")
    label: dict[str, Any] = {"text_font_size": "12px", "text_color": "#57606a", "text_baseline": "bottom"}
    plot.text([first], [rate], text=[near["name"]], **label)


def _finish(plot: figure) -> None:
    legend = plot.legend[0]
    legend.click_policy, legend.location = "hide", "center"
    legend.orientation, legend.border_line_alpha = "horizontal", 0
    legend.ncols = 3
    plot.add_layout(legend, "below")
    plot.grid.grid_line_color = "#e6e9ec"
    plot.outline_line_color = None


def document(content: Mapping[str, Any]) -> str:
    """Draw measured links, as ``dptrace links -o`` writes them, as one HTML page."""
    scripts = [
        *Resources(mode="inline", components=["bokeh"], minified=True, log_level="error").js_raw,
        _DRAW,
    ]
    environment = Environment(autoescape=True)
    # Bokeh's document defines a model where it first stands and refers to it later: the order of keys matters.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "separators": (",", ":")}
    time, rate = figures(content)
    return environment.from_string(static("benchmarks", "links.html")).render(
        facts=[sanitize(fact) for fact in facts(content)],
        answer=nearest_link_sentence(content),
        topology=list(topology(content)),
        notes=[sanitize(note) for note in content["notes"]],
        headings=[heading.replace("\n", " ") for heading in COLUMNS.values()],
        rows=[list(row.values()) for row in rows(content)],
        links=[
            (LABELS.get(kind, sanitize(kind)), found["link"], found["counted"])
            for kind, found in content["collectives"].items()
            if found["link"]
        ],
        plots={"time": json_item(time, ID("time")), "rate": json_item(rate, ID("rate"))},
        scripts=[Markup(script) for script in scripts],
        policy=policy(scripts),
        version=__version__,
    )
