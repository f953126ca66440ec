"""The Gantt chart as a Bokeh layout, for an application of one's own: no frame, no script but Bokeh's.

The page in ``viewers/gantt`` draws millions of intervals with scripts of its own and fills a window. Here each interval
is a Bokeh quad, so that Panel, ``bokeh serve`` and notebooks can place, link and change the chart as any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from bokeh.models import (
    AllLabels,
    Column,
    ColumnDataSource,
    CustomJS,
    CustomJSHover,
    FixedTicker,
    HoverTool,
    LinearAxis,
    NoOverlap,
    PlainText,
    Range1d,
    RangeTool,
    Row,
)
from bokeh.models.annotations.legends import Legend, LegendItem
from bokeh.models.renderers.glyph_renderer import GlyphRenderer
from bokeh.models.renderers.renderer import DataRenderer
from bokeh.models.widgets import Button, DataTable, Div, NumberFormatter, TableColumn
from bokeh.plotting import figure
from numpy.typing import NDArray

from dptrace.analysis.kernels.names import short_names
from dptrace.analysis.per_gpu.split import Part, waiting_label
from dptrace.core.units import byte_size, plural, sanitize
from dptrace.errors import DptraceError
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.headline import drawn_headline
from dptrace.viewers.base.table import step_label
from dptrace.viewers.gantt.chart import OVERLAPPED, WAITING, Chart, Lane, Role, chart
from dptrace.viewers.gantt.finding_places import finding_places
from dptrace.viewers.gantt.page.data import ORDER, categories, collective_entries
from dptrace.viewers.gantt.page.data import layout as page_layout
from dptrace.viewers.gantt.tiles.merged import MergedChart, merge_intervals
from dptrace.viewers.pages.gantt_svg import some_ranks

MOST_INTERVALS = 40_000
"""Intervals that Bokeh still moves smoothly, at about 4 MB; of more, the short ones are merged."""
_MS = 1e6
"""Nanoseconds of a millisecond, the unit of Bokeh's axis."""
_MINIMAP = 56
"""Height of the minimap in pixels."""
_LEFT, _RIGHT = 150, 44
"""Margins in pixels, for the names of rows and the toolbar, the same for chart and minimap."""
_TOOLS = "xpan,xwheel_zoom,xbox_zoom,reset,save"
_ABOVE = 6
"""Gap in pixels above the rows."""
_PATTERNS = {"dots": ".", "hatch": "/", "back": "\\", "bars": "|", "rails": "-"}
"""Bokeh's names of the patterns in ``theme.PATTERNS``."""


def gantt_layout(run: Run, every_rank: bool = False) -> Column:
    """Draw all steps of a run as a Bokeh layout; see :func:`dptrace.figure`.

    Raises:
        DptraceError: the run has no step, or was opened with ``figures_only``.
    """
    if run.figures_only:
        raise DptraceError(f"{run.path}: opened with figures_only, which drops the intervals. Leave it out to draw.")
    part = run if every_rank else some_ranks(run)
    whole = chart(part)
    if not whole.tracks or whole.end_ns <= 0:
        raise DptraceError(f"{run.path}: there is no step to draw.")
    merged = merge_intervals(whole, MOST_INTERVALS)
    drawn = _Drawn(merged.chart)
    pad = whole.end_ns / 250 / _MS
    low, high = -pad, whole.end_ns / _MS + pad
    shown = Range1d(start=low, end=high, bounds=(low, high), min_interval=min(2e-4, high - low))
    main, mini = drawn.main(shown), drawn.minimap(shown, Range1d(start=low, end=high))
    found = list(_findings(part, whole, shown))
    heading = _heading(part, [*_left_out(run, part), *_merged(merged)])
    return Column(children=[heading, *found, mini, main, drawn.split(shown)], sizing_mode="stretch_width")


@dataclass(frozen=True, slots=True)
class _Place:
    """A row of the chart: its top and bottom in pixels, and its name."""

    top: float
    bottom: float
    name: str


class _Drawn:
    """A chart as sources of quads, one for each category: the legend hides a category, and a pattern is a glyph's."""

    def __init__(self, gantt_chart: Chart) -> None:
        self.chart, self.looks = gantt_chart, categories(gantt_chart.exposed)
        self.rows = dict(_rows(gantt_chart))
        self.height = max(place.bottom for place in self.rows.values()) + 4
        self.texts = [*_texts(gantt_chart)]
        self.columns = dict(self._columns())
        self.sources = {number: ColumnDataSource(dict[str, Any](columns)) for number, columns in self.columns.items()}

    def _columns(self) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """Yield the intervals of each category that the chart has, in the order of the legend."""
        places = list(self.rows)
        lanes = [lane for lane in self.chart.lanes if (lane.track, _row_of(lane.role)) in self.rows]
        # All lanes one after the other, then cut by category: what a quad shows is a number in each column.
        start, length = (np.concatenate([getattr(lane, name) for lane in lanes]) / _MS for name in _TIMES)
        category = np.concatenate([lane.category for lane in lanes])
        text = np.concatenate([_text_index(self.chart, lane) for lane in lanes])
        place = np.repeat([places.index((lane.track, _row_of(lane.role))) for lane in lanes], [*map(len, lanes)])
        top, bottom = (np.array([getattr(self.rows[key], side) for key in places]) for side in ("top", "bottom"))
        track = np.array([key[0] if key[1] is Role.PHASES else -1 for key in places], np.int32)
        for one in ORDER:
            of = category == one
            if of.any():
                where = place[of]
                edges = {"left": start[of], "right": (start + length)[of], "top": top[where], "bottom": bottom[where]}
                numbers = {"text": text[of], "row": where, "track": track[where]}
                data = {name: values.astype(np.int32) for name, values in numbers.items()}
                yield one, {**edges, "ms": length[of], **data}

    def main(self, shown: Range1d) -> figure:
        """Return the chart with its axis, legend and tools."""
        plot = self._frame(shown, round(self.height), _TOOLS)
        drawn = self._quads(plot)
        rows = [place.name for place in self.rows.values()]
        plot.add_tools(
            HoverTool(
                renderers=list[DataRenderer](drawn),
                tooltips=[
                    ("", "$name"),
                    ("name", "@text{custom}"),
                    ("row", "@row{custom}"),
                    ("takes", "@ms{0,0.000} ms"),
                    ("starts at", "@left{0,0.000} ms"),
                ],
                formatters={"@text": _lookup(self.texts), "@row": _lookup(rows)},
            )
        )
        self._name_steps(plot)
        legend = [LegendItem(label=str(one.name), renderers=[one]) for one in drawn]
        plot.add_layout(
            Legend(
                items=legend,
                click_policy="hide",
                orientation="horizontal",
                ncols=5,
                location="left",
                border_line_color=None,
            ),
            "above",
        )
        middles = [(place.top + place.bottom) / 2 for place in self.rows.values()]
        plot.yaxis.ticker = FixedTicker(ticks=middles)
        plot.yaxis.major_label_overrides = dict(zip(middles, _row_labels(self.chart, self.rows), strict=True))
        plot.yaxis.update(major_label_policy=AllLabels(), major_tick_line_color=None, axis_line_color=None)
        plot.xaxis[-1].axis_label = "ms since the first step began"
        plot.grid.visible = False
        plot.toolbar.logo = None
        return plot

    def minimap(self, shown: Range1d, whole: Range1d) -> figure:
        """Return the whole run, low, with a window that can be dragged around what is shown."""
        plot = self._frame(whole, _MINIMAP, "")
        self._quads(plot)
        window = RangeTool(x_range=shown)
        window.overlay.update(inverted=True, fill_color=theme.CHROME["light"]["paper"], fill_alpha=0.7)
        plot.add_tools(window)
        plot.axis.visible = plot.grid.visible = False
        return plot

    def _frame(self, x_range: Range1d, height: int, tools: str) -> figure:
        return figure(
            x_range=x_range,
            y_range=Range1d(start=self.height, end=0),
            frame_height=height,
            tools=tools,
            active_scroll="xwheel_zoom" if tools else None,
            toolbar_location="right" if tools else None,
            min_border_left=_LEFT,
            min_border_right=_RIGHT,
            outline_line_color=None,
            lod_threshold=None,
            sizing_mode="stretch_width",
        )

    def _quads(self, plot: figure) -> list[GlyphRenderer[Any]]:
        drawn = []
        for number, source in self.sources.items():
            look = self.looks[number]
            quads = plot.quad(source=source, name=look["label"], fill_color=look["color"], line_color=None)
            if pattern := _PATTERNS.get(look.get("pattern", "")):
                quads.glyph.update(hatch_pattern=pattern, hatch_color="white", hatch_alpha=0.5, hatch_scale=8)
            drawn.append(quads)
        return drawn

    def _name_steps(self, plot: figure) -> None:
        """Draw where steps begin and end, and their names above."""
        first = self.chart.tracks[self.chart.strips[0].tracks[0]]
        bounds = first.bounds_ns / _MS
        plot.vspan(x=bounds, line_color=theme.CHROME["light"]["edge"], line_dash="dashed")
        middles = ((bounds[:-1] + first.step_ends_ns / _MS) / 2).tolist()
        # Plain: Bokeh would take what stands between dollar signs for a formula.
        names = [PlainText(text=f"step {step_label(sanitize(name))}") for name in first.steps]
        axis = LinearAxis(major_label_overrides=dict(zip(middles, names, strict=True)))
        axis.update(
            ticker=FixedTicker(ticks=middles),
            major_label_policy=NoOverlap(),
            axis_line_color=None,
            major_tick_line_color=None,
        )
        plot.add_layout(axis, "above")

    def split(self, shown: Range1d) -> DataTable:
        """Return a table of how long each GPU was in each part in the time that is shown; it follows the chart."""
        parts: list[tuple[str, ColumnDataSource]] = []
        sums: dict[str, Any] = {}
        for number, columns in self.columns.items():
            own, name = columns["track"] >= 0, self._part(number)
            if own.any():
                of = np.bincount(columns["track"][own], columns["ms"][own], len(self.chart.tracks))
                sums[name] = sums.get(name, 0) + of
                parts.append((name, self.sources[number]))
        table = ColumnDataSource({"GPU": [track.label for track in self.chart.tracks], **sums})
        follow = CustomJS(args={"parts": parts, "table": table, "shown": shown}, code=_FOLLOW)
        shown.js_on_change("start", follow)
        shown.js_on_change("end", follow)
        aligned = NumberFormatter(format="0,0.00", text_align="right")
        named = [TableColumn(field=name, title=name, formatter=aligned) for name in sums]
        return DataTable(
            source=table,
            columns=[TableColumn(field="GPU", title="ms in view"), *named],
            index_position=None,
            reorderable=False,
            height=29 + 25 * len(self.chart.tracks),
            sizing_mode="stretch_width",
        )

    def _part(self, category: int) -> str:
        """Return the column of the split that a category counts in: one for all causes of idle time."""
        is_cause = OVERLAPPED < category != WAITING
        return str(self.looks[Part.IDLE if is_cause else category]["short"])


_TIMES = ("start_ns", "duration_ns")
_FOLLOW = """
    const {start, end} = shown, data = table.data;
    for (const [name] of parts) data[name] = data[name].map(() => 0);
    for (const [name, {data: {left, right, track}}] of parts)
      for (let i = 0; i < left.length; i++)
        if (track[i] >= 0 && left[i] < end && right[i] > start)
          data[name][track[i]] += Math.min(right[i], end) - Math.max(left[i], start);
    table.change.emit();
"""
"""Sums what each GPU does between two times: its intervals in the row of phases, which do not overlap."""


def _row_of(role: Role) -> Role:
    """Return the row in which a lane is drawn: idle time fills the gaps between phases."""
    return Role.PHASES if role is Role.IDLE else role


def _rows(gantt_chart: Chart) -> Iterator[tuple[tuple[int, Role], _Place]]:
    """Yield the rows by track and role, from the top; as high as on the page, and of many GPUs only their phases."""
    placed = page_layout(gantt_chart)
    gaps, y = placed["gaps"], float(_ABOVE)
    for one in placed["rows"]:
        role, track = Role(one["role"]), one["track"]
        if placed["collapsed"] and role is not Role.PHASES:
            continue
        if role is Role.PHASES and y > _ABOVE:
            y += gaps["collapsed"] if placed["collapsed"] else gaps["tracks"]
        label = gantt_chart.tracks[track].label
        yield (track, role), _Place(y, y + one["h"], label if role is Role.PHASES else f"{label}, {one['label']}")
        y += one["h"] + gaps["rows"]


def _row_labels(gantt_chart: Chart, rows: dict[tuple[int, Role], _Place]) -> Iterator[str]:
    for (track, role), place in rows.items():
        name = gantt_chart.tracks[track].label
        yield name if role is Role.PHASES else place.name.removeprefix(f"{name}, ")


def _texts(gantt_chart: Chart) -> Iterator[str]:
    """Yield what intervals are called: first nothing, then kernels, collectives, and waits for each rank."""
    yield ""
    shorts = short_names(gantt_chart.names)
    yield from (sanitize(shorts.get(name, name)) for name in gantt_chart.names)
    for entry in collective_entries(gantt_chart):
        title, size = entry.get("title") or entry["kind"] or entry["name"], entry["bytes"]
        yield sanitize(f"{title} · {byte_size(size)}" if size else title)
    yield from (waiting_label(rank) for rank in range(_ranks(gantt_chart)))


def _ranks(gantt_chart: Chart) -> int:
    """Return how many ranks may be waited for: the highest number of one that is, and 1."""
    waited = [int(lane.name.max()) for lane in gantt_chart.lanes if lane.role is Role.PHASES and len(lane)]
    return max(waited, default=0)


def _text_index(gantt_chart: Chart, lane: Lane) -> NDArray[np.int64]:
    """Return the index into the texts of each interval of a lane; 0 where its category says all."""
    kernels, collectives = 1, 1 + len(gantt_chart.names)
    if lane.role in (Role.COMPUTE, Role.MEMORY):
        return lane.name + kernels
    if lane.role is Role.EXPOSURE:
        return lane.name + collectives
    if lane.role is Role.PHASES:
        waits = collectives + len(gantt_chart.collectives)
        return np.where((lane.category == WAITING) & (lane.name > 0), lane.name - 1 + waits, 0)
    return np.zeros(len(lane), np.int64)


def _lookup(texts: Sequence[str]) -> CustomJSHover:
    """Return a formatter that shows a text by its number: a source holds no text for each of its intervals."""
    return CustomJSHover(args={"texts": list(texts)}, code="return texts[value]")


def _heading(run: Run, notes: Sequence[str]) -> Div:
    """Return the name of the run, facts on it, what of it is drawn, and the run's notes, folded."""
    head = drawn_headline(run)
    listed = "".join(f"<li>{escape(sanitize(note))}</li>" for note in head.notes)
    folded = f"<details><summary>{plural(len(head.notes), 'note')}</summary><ul>{listed}</ul></details>"
    return Div(
        text="<br>".join((f"<b>{escape(sanitize(head.line))}</b>", *notes)) + (folded if listed else ""),
        disable_math=True,
        sizing_mode="stretch_width",
    )


def _left_out(run: Run, part: Run) -> list[str]:
    if part is run:
        return []
    return [f"{len(part.ranks)} of {len(run.ranks):,} ranks are drawn, the most notable; every_rank=True draws all."]


def _merged(merged: MergedChart) -> list[str]:
    if not merged.left_out:
        return []
    longest = f"{merged.resolution_ns / _MS:,.3f} ms"
    return [f"{merged.left_out:,} kernels, operators and copies of up to {longest} are drawn as sums of that length."]


def _findings(run: Run, whole: Chart, shown: Range1d) -> Iterator[Any]:
    """Yield the first findings: what each gains or costs on a button that shows its place, then what it is."""
    for finding in finding_places(run, whole):
        button = Button(label=f"{finding['figure']} · {finding['share']}", width=230)
        if place := finding["place"]:
            to = {"shown": shown, "start": place["from"] / _MS, "end": place["to"] / _MS}
            button.js_on_click(CustomJS(args=to, code="shown.setv({start, end})"))
        else:
            button.disabled = True
        said = f"{escape(sanitize(finding['text']))}<br>→ {escape(sanitize(finding['advice']))}"
        words = Div(text=said, disable_math=True, sizing_mode="stretch_width")
        yield Row(children=[button, words], sizing_mode="stretch_width")
