"""The page of a benchmark: conclusions, six charts and the table, in one file without network::

from dptrace.viewers.benchmarks import bench_page
page = bench_page.document(content)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bokeh.models import BoxZoomTool, NoOverlap, ResetTool
from bokeh.plotting import figure

from dptrace.bench.conclusions import CHARTS, ChartText
from dptrace.bench.table import Row
from dptrace.viewers.base.bokeh_renderer import bokeh_figure
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.marks import Drawing
from dptrace.viewers.base.page import Markup
from dptrace.viewers.base.section_page import Section, chart_plots, live_charts, section_page, sections
from dptrace.viewers.benchmarks import bench_table

__all__ = ["Content", "document"]

_THIN_LABELS = """
let views = [];
const whole = new WeakMap();
// Where the page is narrow, texts that would lie on others, or reach out of their bars, are left out; names come first.
function thin(view) {
  const placed = [], { x_scale, y_scale } = view.frame;
  const changed = [];
  for (const { glyph, data_source: source } of view.model.renderers) {
    if (glyph.type !== "Text") continue;
    if (!whole.has(source)) whole.set(source, [...source.data.text]);
    const data = source.data, shown = whole.get(source).map(() => "");
    changed.push([source, shown]);
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
  for (const [source, shown] of changed)
    if (shown.some((text, i) => text !== source.data.text[i])) source.data = { ...source.data, text: shown };
}
function thinAll() {
  const width = innerWidth;
  for (const manager of views) for (const view of manager.roots) if (view.frame) thin(view);
  document.documentElement.dataset.thinned = width;
}
addEventListener("resize", () => setTimeout(thinAll, 150));
document.addEventListener("drawn", ({ detail }) => { views = detail; thinAll(); });
"""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of the page."""

    title: str
    facts: Sequence[str]
    notes: Sequence[str]
    rows: Sequence[Row]
    """From ``table.rows``."""
    charts: Sequence[tuple[ChartText, Drawing]]
    """Each chart of ``conclusions``, with its drawing."""


def document(content: Content) -> str:
    """Draw a benchmark as one HTML page.

    On the screen Bokeh draws, in the colors that the system asks for; on paper, and without JavaScript, the page
    shows the same charts as SVG.
    """
    parts, places = [], {}
    for chart, drawing in content.charts:
        text = Markup("").join(Markup("<li>{}</li>").format(sentence) for sentence in chart.sentences)
        sentences = Markup('<ul class="sentences">{}</ul>').format(text) if chart.sentences else Markup("")
        place = f"chart-{chart.name}"
        parts.append(Section(chart.name, chart.title, sentences + live_charts(drawing, place), None, chart.missing))
        places[place] = drawing
    parts.append(Section("table", "All runs", cells=bench_table.text_table(content.rows, _TABLE_NOTE), open=True))
    answer = next((chart.sentences[0] for chart, _ in content.charts if chart.sentences), "")
    head = Headline(content.title, "", tuple(content.facts), (*content.notes, *bench_table.failures(content.rows)))
    above = Markup('<p class="answer">{}</p>').format(answer) if answer else Markup("")
    return section_page(head, above + sections(parts), chart_plots(places, _figure), _THIN_LABELS)


_TABLE_NOTE = (
    "Epoch: the median of all timed epochs, without the profiler; ± spread: half the distance between its quartiles. "
    "Communication, overlap and exposed share: from a separate, recorded run. Speedup: T₁ / T(N). "
    "Efficiency: T₁ / (N·T(N)). Amdahl: f = T₁ / (T₁ + communication) of the naive run, ceiling 1 / ((1 − f) + f/N)."
)


def _figure(drawing: Drawing, dark: bool) -> figure:
    """Make a chart's figure; only the losses get a toolbar, to zoom in."""
    plot = bokeh_figure(drawing, dark)
    for axis in plot.axis:
        axis.major_label_policy = NoOverlap(min_distance=4)
    plot.xgrid.visible, plot.ygrid.visible = drawing.x.grid, drawing.y.grid
    plot.update(tools=[tool for tool in plot.tools if type(tool).__name__ == "HoverTool"], toolbar_location=None)
    if drawing.title == CHARTS["loss"]:
        plot.add_tools(BoxZoomTool(), ResetTool())
        plot.toolbar_location = "above"
    return plot
