"""The page of a benchmark: what its figures say, six charts, the table; one file without network.

from dptrace.viewers.benchmarks import bench_page
page = bench_page.document(content)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.models import BoxZoomTool, ColumnDataSource, NoOverlap, ResetTool
from bokeh.plotting import figure
from markupsafe import Markup

from dptrace.core.text import sanitize
from dptrace.version import __version__
from dptrace.viewers.base import theme
from dptrace.viewers.base.bokeh_renderer import bokeh_figure
from dptrace.viewers.base.marks import Box, Dot, Drawing, Entry, Label, Line
from dptrace.viewers.base.page import policy, static
from dptrace.viewers.base.section_page import bokeh_script, environment
from dptrace.viewers.base.svg_renderer import svg
from dptrace.viewers.benchmarks import bench_table

__all__ = ["Content", "document"]

_DARK = {
    "#4B5563": "#B3BCC8",
    "#0072B2": "#4AA8E8",
    "#D55E00": "#F07C22",
    "#009E73": "#22C495",
    "#A8438A": "#D77BBB",
    "#602047": "#A8487F",
    "#6A4C93": "#A183D6",
    "#857B70": "#B0A497",
    "#3A7D44": "#66B874",
    "#5B6472": "#9AA5B4",
    "#374151": "#E6E9EE",
    "#9AA5B4": "#667284",
}
"""On a dark page, what stands for a colour that would sink into it."""
_SIGNS = {"circle": "●", "triangle": "▲", "square": "■", "diamond": "◆", "": "■"}
_DRAW = """
const island = (id) => JSON.parse(document.getElementById(id).textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
let views = [];
const whole = new WeakMap();
// Where the page is narrow, texts that would lie on others, or reach out of their bars, are left out; names come first.
function thin(view) {
  const placed = [], { x_scale, y_scale } = view.frame;
  const told = [];
  for (const { glyph, data_source: source } of view.model.renderers) {
    if (glyph.type !== "Text") continue;
    if (!whole.has(source)) whole.set(source, [...source.data.text]);
    const data = source.data, shown = whole.get(source).map(() => "");
    told.push([source, shown]);
    const order = shown.map((_, i) => i).sort((a, b) => (data.style?.[b] === "bold") - (data.style?.[a] === "bold"));
    for (const i of order) {
      const text = whole.get(source)[i], width = 6.6 * text.length;
      if (!text) continue;
      if (data.left && x_scale.compute(data.right[i]) - x_scale.compute(data.left[i]) < width + 4) continue;
      const align = glyph.text_align.value, x = x_scale.compute(data.x[i]), y = y_scale.compute(data.y[i]);
      const left = x - (align === "center" ? width / 2 : align === "right" ? width : 0);
      if (placed.some((p) => left < p.right && p.left < left + width && Math.abs(y - p.y) < 13)) continue;
      placed.push({ left, right: left + width, y });
      shown[i] = text;
    }
  }
  for (const [source, shown] of told)
    if (shown.some((text, i) => text !== source.data.text[i])) source.data = { ...source.data, text: shown };
}
function thinned() {
  const width = innerWidth;
  for (const manager of views) for (const view of manager.roots) if (view.frame) thin(view);
  document.documentElement.dataset.thinned = width;
}
addEventListener("resize", () => setTimeout(thinned, 150));
async function draw() {
  const look = dark.matches ? "dark" : "light";
  for (const view of views) view.clear();
  views = [];
  for (const place of document.querySelectorAll(".live")) {
    place.replaceChildren();
    views.push(await Bokeh.embed.embed_item(island(`${place.id}-${look}`), place.id));
  }
  thinned();
  Object.assign(document.documentElement.dataset, { ready: "1", look });
}
let drawn = draw();
dark.addEventListener("change", () => { drawn = drawn.then(draw); });
"""


@dataclass(frozen=True, slots=True)
class Content:
    """What stands on the page."""

    title: str
    facts: Sequence[str]
    notes: Sequence[str]
    rows: Sequence[Any]
    """Of ``table.rows``."""
    charts: Sequence[tuple[Any, Drawing]]
    """Each of ``conclusions.read``, with its drawing."""


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    title: str
    sentences: Sequence[str]
    missing: str
    still: Markup
    keys: Sequence[tuple[str, str, str, str]]
    """Of the legend: colour, colour on a dark page, sign, name."""


def document(content: Content) -> str:
    """Draw a benchmark as one HTML page.

    On the screen Bokeh draws, in the colours that the system asks for; on paper, and without JavaScript, the page
    shows the same charts as SVG.
    """
    parts, plots = [], {}
    for chart, drawing in content.charts:
        still = Markup("" if drawing.message else svg(drawing, heading=False))  # its texts are escaped by svg
        parts.append(
            _Part(chart.name, chart.title, chart.sentences, chart.missing, still, [_key(e) for e in drawing.legend])
        )
        if not drawing.message:
            plots[f"{chart.name}-light"] = json_item(_figure(drawing, chart.name, "light"), ID(chart.name))
            plots[f"{chart.name}-dark"] = json_item(_figure(_darkened(drawing), chart.name, "dark"), ID(chart.name))
    scripts = [*bokeh_script(), _DRAW] if plots else []
    answer = next((part.sentences[0] for part in parts if part.sentences), "")
    headings = bench_table.headings(content.rows)
    return (
        environment()
        .from_string(static("benchmarks", "bench.html"))
        .render(
            content=content,
            answer=answer,
            parts=parts,
            plots=plots,
            headings=headings,
            table=[(bench_table.full_row(row, headings), row.failed) for row in content.rows],
            failures=bench_table.failures(content.rows),
            policy=policy(scripts),
            styles=Markup(_colors() + static("benchmarks", "bench.css")),
            scripts=[Markup(script) for script in scripts],
            version=__version__,
        )
    )


def _colors() -> str:
    light, dark = (
        "".join(f"--{key}:{value};" for key, value in theme.CHROME[name].items()) for name in ("light", "dark")
    )
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}\n"
    )


def _key(entry: Entry) -> tuple[str, str, str, str]:
    sign = "┄" if entry.name.startswith("dashed") else "○" if entry.name.startswith("ring") else _SIGNS[entry.shape]
    return entry.color, _DARK.get(entry.color, entry.color), sign, sanitize(entry.name)


def _darkened(drawing: Drawing) -> Drawing:
    def other(mark: Box | Dot | Line | Label) -> Box | Dot | Line | Label:
        return replace(mark, color=_DARK.get(mark.color, mark.color))

    return replace(drawing, marks=tuple(map(other, drawing.marks)))


def _figure(drawing: Drawing, name: str, look: str) -> figure:
    """Make the figure, in the colours of a light or a dark page."""
    chrome = theme.CHROME[look]
    plot = bokeh_figure(drawing)
    plot.update(background_fill_color=None, border_fill_color=None)
    for axis in plot.axis:
        axis.major_label_policy = NoOverlap(min_distance=4)
        axis.update(axis_label_text_color=chrome["quiet"], major_label_text_color=chrome["text"])
    for source in (model for model in plot.references() if isinstance(model, ColumnDataSource)):
        fills = source.data.get("fill")
        if fills is not None:  # rings are filled with the paper's colour
            source.data["fill"] = [chrome["paper"] if fill == "#FFFFFF" else fill for fill in fills]
    plot.grid.grid_line_color = chrome["grid"]
    plot.xgrid.visible, plot.ygrid.visible = drawing.x.grid, drawing.y.grid
    plot.update(tools=[tool for tool in plot.tools if type(tool).__name__ == "HoverTool"], toolbar_location=None)
    if name == "loss":
        plot.add_tools(BoxZoomTool(), ResetTool())
        plot.toolbar_location = "above"
    return plot
