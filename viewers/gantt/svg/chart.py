"""The Gantt chart as static SVG, for slides and reports, drawn without a browser.

As on the page, each pixel column is a stack of exact time shares, and intervals of three pixels are drawn whole.
"""

from __future__ import annotations

from itertools import groupby
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.matching.calls import place
from dptrace.analysis.per_gpu.split import Part
from dptrace.core.intervals import unique
from dptrace.core.units import milliseconds
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.format import step_label
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.marks import message, time_axis
from dptrace.viewers.base.svg_canvas import Canvas, shorten, text_width
from dptrace.viewers.base.svg_renderer import svg as message_svg
from dptrace.viewers.gantt.chart import OVERLAPPED, WAITING, Role, chart
from dptrace.viewers.gantt.svg.labels import COLORS, NAMES, draw_labels
from dptrace.viewers.gantt.svg.layout import RIGHT, STRIP, WIDTH, Row, SvgLayout, svg_layout
from dptrace.viewers.gantt.svg.level_of_detail import Intervals, Lod
from dptrace.viewers.terminal.summary import sentence

__all__ = ["MAX_SHAPES", "draw_chart", "gantt_svg", "legend_height"]

MAX_SHAPES = 5_000
"""Maximum number of rectangles of short intervals; with more, the columns are wider."""

_COLUMNS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
"""Widths of a column in pixels, finest first."""
_WHOLE, _SEPARATED = 3.0, 5.0
"""Minimum widths in pixels of an interval that is drawn whole, and of one with a gap to the next."""
_LEGEND_LINE = 18.0
"""Height of a line of the legend in pixels."""
_FINE = 14.0
"""Minimum height of a row whose shares are drawn to half a pixel."""
_ROW_NAMES = {Role.PHASES: "phases", Role.COMPUTE: "compute", Role.EXPOSURE: "communication", Role.MEMORY: "memory"}
_QUIET, _EDGE = "#5B6472", "#8593A8"
_ORDER = (*theme.PART_ORDER[:5], WAITING, OVERLAPPED, *theme.PART_ORDER[5:])
_Box: TypeAlias = tuple[float, float, float, float]


def gantt_svg(run: Run, heading: bool = True, dark: bool = False) -> str:
    """Draw a run as SVG text.

    Args:
        heading: draw the run's name, facts and summary sentence; a page has its own.
        dark: add the colours for a dark page.
    """
    gantt_chart = chart(run)
    head = headline(run)
    if not gantt_chart.tracks or gantt_chart.end_ns <= 0:
        return message_svg(message(head.title or "Gantt chart", "There is no step in this run."), heading, dark)
    layout = svg_layout(gantt_chart, 106 if heading else 50)
    canvas = Canvas(layout.chart_width, layout.bottom + 12, head.title, dark)
    if heading:
        canvas.text(16, 20, shorten(head.title, 500, 18), size=17, bold=True)
        facts = shorten(" · ".join(head.facts), WIDTH - 600)
        canvas.text(WIDTH - RIGHT, 20, facts, _QUIET, anchor="end")
        canvas.text(16, 44, shorten(sentence(run).plain, WIDTH - 32, 13), size=13)
    draw_chart(canvas, layout, (layout.left, layout.top - 36))
    return canvas.finish()


def draw_chart(canvas: Canvas, layout: SvgLayout, legend: tuple[float, float]) -> None:
    """Draw a chart's axis, rows and labels, and its legend, whose first line begins at *legend*."""
    left, top = legend
    for x, y, category in _legend(layout, left):
        canvas.rect(x, top + y - 6, 15, 12, COLORS[category], round_=2)
        canvas.text(x + 20, top + y, NAMES[category], "#374151")
    _frame(canvas, layout)
    lods = _lods(layout)
    _short(canvas, layout, lods)
    for row, lod in zip(layout.rows, lods, strict=True):
        _whole(canvas, layout, row, lod)
        draw_labels(canvas, layout, row)


def legend_height(layout: SvgLayout, left: float) -> float:
    """Return the height of the lines of a chart's legend, which begin at *left*, in pixels."""
    return max(y for _, y, _ in _legend(layout, left)) + _LEGEND_LINE


def _legend(layout: SvgLayout, left: float) -> list[tuple[float, float, int]]:
    """Return place and category of each entry, in as many lines as the width of the chart requires."""
    lanes = [layout.lane(row.track, row.role) for row in layout.rows]
    used = {int(c) for lane in lanes if lane for c in unique(lane.category)} | {int(Part.IDLE)}
    entries, x, y = [], left, 0.0
    for category in (int(category) for category in _ORDER if int(category) in used):
        width = text_width(NAMES[category]) + 20
        if x > left and x + width > layout.chart_width - RIGHT:
            x, y = left, y + _LEGEND_LINE
        entries.append((x, y, category))
        x += width + 16
    return entries


def _frame(canvas: Canvas, layout: SvgLayout) -> None:
    """Draw the axis, the step strips and edges, the names of GPUs and rows, and the idle background."""
    tracks = layout.gantt_chart.tracks
    reach = 0.0
    for value, label in time_axis(layout.gantt_chart.end_ns).ticks:
        x, half = layout.x(value), text_width(label) / 2
        canvas.line(x, layout.top, x, layout.bottom, "#E3E7EC")
        if x - half >= reach:
            canvas.text(x, layout.top - 9, label, "#374151", anchor="middle")
            reach = x + half + 8
    canvas.line(layout.left, layout.top, layout.left + layout.width, layout.top, "#9CA3AF")
    for y, number in layout.strips:
        _strip(canvas, layout, y, number)
    if len(layout.gantt_chart.strips) > 1:
        lead = tracks[layout.gantt_chart.strips[0].tracks[0]]
        canvas.text(layout.left - 8, layout.strips[0][0] + STRIP / 2, f"steps, rank {lead.rank}", _QUIET, 12, "end")
    _edges(canvas, layout)
    several = len({row.role for row in layout.rows}) > 2
    for row in layout.rows:
        track, middle = tracks[row.track], row.y + row.height / 2
        if row.role is Role.PHASES:
            canvas.text(16, middle, track.label, size=13 if row.height > 12 else 10, bold=True)
            low, high = layout.x(float(track.bounds_ns[0])), layout.x(float(track.bounds_ns[-1]))
            canvas.rect(low, row.y, high - low, row.height, theme.IDLE)
        elif row.role is Role.COMPUTE and track.coordinates:
            canvas.text(16, middle, place(track.coordinates), _QUIET, 11)
        if several:
            canvas.text(layout.left - 8, middle, _ROW_NAMES[row.role], _QUIET, 10 if row.height < 12 else 12, "end")


def _strip(canvas: Canvas, layout: SvgLayout, y: float, number: int) -> None:
    strip = layout.gantt_chart.strips[number]
    bounds = layout.gantt_chart.tracks[strip.tracks[0]].bounds_ns.tolist()
    for step, name in enumerate(strip.steps):
        left, right = layout.x(bounds[step]), layout.x(bounds[step + 1])
        canvas.rect(left, y, right - left - (1 if right - left > 4 else 0), STRIP, "#D3DBE7" if step % 2 else "#E4E9F0")
        short = step_label(name)
        length = milliseconds(bounds[step + 1] - bounds[step])
        texts = (f"step {short} · {length} ms" if short != name else f"{name} · {length} ms", short)
        fitting = next((text for text in texts if text_width(text) + 8 <= right - left), "")
        if fitting:
            canvas.text((left + right) / 2, y + STRIP / 2, fitting, "#2B3544", anchor="middle")


def _edges(canvas: Canvas, layout: SvgLayout) -> None:
    """Draw lines through the rows where steps begin, one through all neighbors whose steps begin at one pixel."""
    tops = {row.track: row.y for row in reversed(layout.rows)}
    ends = {row.track: row.y + row.height for row in layout.rows}
    places = [[round(layout.x(bound)) for bound in track.bounds_ns.tolist()] for track in layout.gantt_chart.tracks]
    for bounds, tracks in groupby(range(len(places)), places.__getitem__):
        first, *_, last = (*tracks,) * 2
        if bounds[-1] - bounds[0] <= 4 * len(bounds):
            continue
        top = layout.strips[0][0] if first == 0 else tops[first] - 4
        for x in bounds:
            canvas.line(x, top, x, ends[last], _EDGE, dash="3 3")


def _lods(layout: SvgLayout) -> list[Lod]:
    empty = np.zeros(0, np.int64)
    none = Intervals(empty, empty, empty)
    lanes = [layout.lane(row.track, row.role) for row in layout.rows]
    intervals = (Intervals(lane.start_ns, lane.duration_ns, lane.category) if lane else none for lane in lanes)
    return [Lod(lane, WAITING + 1) for lane in intervals]


def _short(canvas: Canvas, layout: SvgLayout, lods: list[Lod]) -> None:
    """Draw short intervals as stacks of time shares, as finely as MAX_SHAPES allows."""
    longest = _WHOLE * layout.gantt_chart.end_ns / layout.width
    brief = []
    for lod in lods:
        lane, kept = lod.lane, lod.lane.duration_ns < longest
        brief.append(Lod(Intervals(lane.start_ns[kept], lane.duration_ns[kept], lane.category[kept]), WAITING + 1))
    for wide in _COLUMNS:
        drawn = [_stacks(layout, row, lod, wide) for row, lod in zip(layout.rows, brief, strict=True)]
        if sum(len(boxes) for row in drawn for boxes in row.values()) <= MAX_SHAPES:
            break
    for row in drawn:
        for category, boxes in row.items():
            canvas.rects(boxes, COLORS[category])


def _stacks(layout: SvgLayout, row: Row, lod: Lod, wide: int) -> dict[int, list[_Box]]:
    columns = max(layout.width // wide, 1)
    share = lod.density(0, layout.gantt_chart.end_ns, columns)
    fit = row.height / np.maximum(1, share.sum(axis=0))
    finest = 0.5 if row.height >= _FINE else row.height / 6
    total = np.zeros(columns)
    stacks: dict[int, list[_Box]] = {}
    for category in map(int, _ORDER):
        low = np.round(total * fit / finest) * finest
        total = total + share[category]
        high = np.round(total * fit / finest) * finest
        # Copies are short and rare; a minimum height keeps them visible.
        if row.role is Role.MEMORY:
            high = np.where(share[category] > 0, np.maximum(high, low + min(4, row.height)), high)
        if boxes := _runs(low, np.minimum(high, row.height), layout, row):
            stacks[category] = boxes
    return stacks


def _runs(low: NDArray[np.float64], high: NDArray[np.float64], layout: SvgLayout, row: Row) -> list[_Box]:
    """Join neighboring columns of the same height."""
    changed = np.flatnonzero((np.diff(low) != 0) | (np.diff(high) != 0)) + 1
    first = np.concatenate(([0], changed))
    last = np.concatenate((changed, [len(low)]))
    wide = layout.width / len(low)
    return [
        (layout.left + begin * wide, row.y + row.height - high[begin], (end - begin) * wide, high[begin] - low[begin])
        for begin, end in zip(first.tolist(), last.tolist(), strict=True)
        if high[begin] > low[begin]
    ]


def _whole(canvas: Canvas, layout: SvgLayout, row: Row, lod: Lod) -> None:
    lane = lod.lane
    end = layout.gantt_chart.end_ns
    boxes: dict[int, list[_Box]] = {}
    apart = row.role in (Role.COMPUTE, Role.EXPOSURE)
    for index in lod.long(0, end, _WHOLE * end / layout.width).tolist():
        start = int(lane.start_ns[index])
        left, right = layout.x(start), layout.x(start + int(lane.duration_ns[index]))
        line = 0.8 if apart and right - left > _SEPARATED else 0.0
        boxes.setdefault(int(lane.category[index]), []).append((left, row.y, right - left - line, row.height))
    for category in sorted(boxes.keys() & COLORS.keys()):
        canvas.rects(boxes[category], COLORS[category])
