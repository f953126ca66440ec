"""A figure for papers and slides: one step of a Gantt chart, in type that stays readable when it is printed small."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dptrace.core.numbers import Number
from dptrace.core.units import duration, share
from dptrace.run.notable_ranks import middle_step_of, notable_ranks
from dptrace.run.run import Run
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.marks import message
from dptrace.viewers.base.svg_canvas import Canvas, shorten, text_width
from dptrace.viewers.base.svg_renderer import svg as message_svg
from dptrace.viewers.gantt.chart import Chart, chart
from dptrace.viewers.gantt.finding_places import MOST, Place, place_of
from dptrace.viewers.gantt.svg.chart import draw_chart, legend_height
from dptrace.viewers.gantt.svg.layout import RIGHT, SvgLayout, svg_layout

__all__ = ["FIGURE_WIDTH", "FIGURE_WIDTHS", "figure_svg"]

FIGURE_WIDTH = 640
"""Width in pixels: as wide as a page of a paper (178 mm), letters are 2.5 to 3.6 mm high."""
FIGURE_WIDTHS = Number(400, 2000, whole=True)
_MOST_RANKS = 8
"""Number of ranks that are drawn where none are chosen."""
_TEXT, _LINE = 13, 19.0
"""Size of the annotations and height of their lines in pixels."""
_LEFT = 16
_MARK = "#B00020"
_BADGE = 8.0
"""Radius of an annotation's number in pixels."""


def figure_svg(
    run: Run, every_step: bool = False, every_rank: bool = False, width: int = FIGURE_WIDTH, annotate: bool = False
) -> str:
    """Draw the step of median length as SVG text: no heading, only rows, axis and legend.

    Args:
        every_step: draw all steps of *run* instead of one.
        every_rank: draw all ranks of *run*; else of more than eight, the most notable.
        width: of the figure in pixels; a narrow one has the larger type once it is scaled to a column.
        annotate: number the most expensive findings in the chart and write them below it.

    Raises:
        UsageError: no figure has such a width.
    """
    FIGURE_WIDTHS.check(width, "--figure-width")
    part = run if every_step else middle_step_of(run)
    part = part if every_rank else _some_ranks(part)
    gantt_chart = chart(part)
    if not gantt_chart.tracks or gantt_chart.end_ns <= 0:
        return message_svg(message(headline(run).title or "Gantt chart", "There is no step in this run."))
    legend = legend_height(svg_layout(gantt_chart, 0, width), _LEFT)
    layout = svg_layout(gantt_chart, legend + 30, width)
    notes = _annotations(part, gantt_chart, width) if annotate else []
    canvas = Canvas(width, layout.bottom + _height(notes) + 6, headline(run).title)
    draw_chart(canvas, layout, (_LEFT, 12))
    _draw_annotations(canvas, layout, notes)
    return canvas.finish()


def _some_ranks(run: Run) -> Run:
    """Choose the most notable ranks of many, in their order."""
    if len(run.ranks) <= _MOST_RANKS:
        return run
    chosen = [run.timelines[one.index].rank for one in notable_ranks(run)]
    return run.select(ranks=list(dict.fromkeys(chosen))[:_MOST_RANKS])


_Annotation = tuple[Place, Sequence[str]]
"""Where an annotation is, and its lines."""


def _annotations(run: Run, gantt_chart: Chart, width: float) -> list[_Annotation]:
    """Return the most expensive findings that the chart shows."""
    found = [(finding, place_of(finding, run, gantt_chart)) for finding in run.cross_rank.findings]
    shown = [(finding, place) for finding, place in found if place is not None][:MOST]
    return [
        (
            place,
            list(_lines(f"{finding.text} {duration(finding.figure[0])}, {share(finding.figure[1])} of a step.", width)),
        )
        for finding, place in shown
    ]


def _lines(text: str, width: float) -> Iterator[str]:
    """Break a text into lines that fit next to an annotation's number."""
    room = width - 2 * RIGHT - 3 * _BADGE
    line = ""
    for word in re.split(r" (?!%)", text):
        if line and text_width(f"{line} {word}", _TEXT) > room:
            yield line
            line = ""
        line = shorten(f"{line} {word}".strip(), room, _TEXT)
    yield line


def _height(annotations: list[_Annotation]) -> float:
    return sum(len(lines) * _LINE + 4 for _, lines in annotations) + (8 if annotations else 0)


def _draw_annotations(canvas: Canvas, layout: SvgLayout, annotations: list[_Annotation]) -> None:
    """Frame each finding's place in the rows of its rank, and write it below the chart."""
    y = layout.bottom + 8
    for number, (place, lines) in enumerate(annotations, 1):
        rows = [row for row in layout.rows if row.track == place.track]
        left, right = layout.x(place.start_ns), layout.x(place.end_ns)
        top, bottom = min(row.y for row in rows) - 2, max(row.y + row.height for row in rows) + 2
        canvas.polyline([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], _MARK, 1.6)
        _badge(canvas, min(right, layout.chart_width - _BADGE - 1), top, number)
        _badge(canvas, RIGHT, y + _LINE / 2, number)
        for line in lines:
            canvas.text(RIGHT + 2 * _BADGE, y + _LINE / 2, line, size=_TEXT)
            y += _LINE
        y += 4


def _badge(canvas: Canvas, x: float, y: float, number: int) -> None:
    canvas.rect(x - _BADGE, y - _BADGE, 2 * _BADGE, 2 * _BADGE, _MARK, round_=_BADGE)
    canvas.text(x, y, str(number), "#FFFFFF", 11, "middle", bold=True, on=_MARK)
