"""A figure for papers and slides: one step of a Gantt chart, in type that stays readable when it is printed small."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.findings.finding import top_findings
from dptrace.analysis.matching.calls import place as place_of_rank
from dptrace.analysis.per_gpu.split import Part, waiting_label
from dptrace.comparison.step_alignment import TimeSaved, align
from dptrace.core.intervals import Int64, covered, union, unique
from dptrace.core.numbers import Number
from dptrace.core.units import byte_size, duration, milliseconds, share
from dptrace.replay.findings import findings_of
from dptrace.run.notable_ranks import middle_step_of, notable_ranks
from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.headline import drawn_headline, headline
from dptrace.viewers.base.marks import message, time_axis
from dptrace.viewers.base.svg import Canvas, shorten, text_width
from dptrace.viewers.base.svg import svg as message_svg
from dptrace.viewers.base.table import GAIN_UNKNOWN, step_label
from dptrace.viewers.base.time_saved import time_saved_text, titles
from dptrace.viewers.gantt.chart import OVERLAPPED, WAITING, Chart, Lane, Role, Strip, chart
from dptrace.viewers.gantt.finding_places import MOST, counted
from dptrace.viewers.gantt.page.data import LABEL_RULES, ORDER, SHORT_ROW_LABELS, categories, collective_entries
from dptrace.viewers.gantt.page.data import layout as page_layout
from dptrace.viewers.gantt.page.pair import answers, paired_chart
from dptrace.viewers.terminal.summary import sentence

# The layout of a static Gantt chart: the rows and strips of the page, stacked, and the names beside them.


WIDTH, RIGHT = 1400.0, 24.0
"""Width of the chart and of its right margin in pixels."""
_LEFT = 16
"""Left margin, in pixels."""
_STRIP_GAP = 6
"""Gap above the step strips in pixels."""
_MOST_NAMES = 0.25
"""Share of the width that names beside the rows may take; above it, they are shorter."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the chart: the track and role of its lane, and its place in pixels."""

    track: int
    role: Role
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Names:
    """What stands left of the rows: the names of GPUs and of rows, and the width of both in pixels."""

    gpus: tuple[str, ...]
    rows: dict[Role, str]
    """Without that of the phases, the name of a GPU stands in its place."""
    left: float


@dataclass(frozen=True, slots=True)
class SvgLayout:
    """The places of rows and strips in pixels."""

    gantt_chart: Chart
    names: Names
    top: float
    rows: tuple[Row, ...]
    strips: tuple[tuple[int, float], ...]
    """Index and y of each strip that is drawn: side by side, above the rows of its run."""
    strip_height: float
    bottom: float
    looks: Sequence[Mapping[str, Any]]
    """Names and colors of each category."""
    chart_width: float = WIDTH
    """The width of the whole chart in pixels."""

    @property
    def left(self) -> float:
        """Where the time axis begins."""
        return self.names.left

    @property
    def width(self) -> int:
        """The width of the time axis in whole pixels."""
        return int(self.chart_width - self.left - RIGHT)

    def x(self, ns: float) -> float:
        """Return the x position of a time since the chart's origin, limited to the axis."""
        return self.left + min(max(ns / max(self.gantt_chart.end_ns, 1), 0), 1) * self.width

    def lane(self, track: int, role: Role) -> Lane | None:
        """Return a lane, or None if the chart does not have it."""
        return next((lane for lane in self.gantt_chart.lanes if lane.track == track and lane.role is role), None)


def svg_layout(gantt_chart: Chart, top: float, width: float = WIDTH) -> SvgLayout:
    """Place the rows of a chart below *top*, as the page stacks them: many GPUs have one row each."""
    placed = page_layout(gantt_chart, compact=True)
    gaps, collapsed = placed["gaps"], placed["collapsed"]
    names = _names(gantt_chart, {} if collapsed else {Role(row["role"]): row["label"] for row in placed["rows"]}, width)
    looks, strip_height, y = categories(gantt_chart.exposed), placed["strips"][0]["h"], top
    rows: list[Row] = []
    strips: list[tuple[int, float]] = []
    for head in placed["strips"]:
        y += _STRIP_GAP
        strips += [(number, y) for number in _side_by_side(gantt_chart, head["strips"])]
        y += strip_height + gaps["strip"]
        tracks = set(head["tracks"])
        for row in (row for row in placed["rows"] if row["track"] in tracks):
            is_first, role = row["role"] == Role.PHASES.value, Role(row["role"])
            if is_first and row["track"] != head["tracks"][0]:
                y += gaps["collapsed" if collapsed else "tracks"] - gaps["rows"]
            if is_first or not collapsed:
                height = placed["low"] if collapsed else row["h"]
                rows.append(Row(row["track"], role, y, height))
                y += height + gaps["rows"]
        y += gaps["tracks"] - gaps["rows"]
    return SvgLayout(gantt_chart, names, top, tuple(rows), tuple(strips), strip_height, y, looks, width)


def _names(gantt_chart: Chart, roles: dict[Role, str], width: float) -> Names:
    """Return the longest names that leave enough of the width to the rows."""
    full = tuple(track.label for track in gantt_chart.tracks)
    ranks = tuple(name.rsplit(" · ", 1)[0] for name in full)
    rows = roles if len(roles) > 2 else {}
    own: dict[Role, str] = {role: name for role, name in rows.items() if role is not Role.PHASES}
    short: dict[Role, str] = {role: SHORT_ROW_LABELS.get(role, name) for role, name in own.items()}
    for gpus, named in ((full, rows), (full, own), (ranks if len(set(ranks)) == len(full) else full, short)):
        beside = Role.PHASES in named
        gpu, row = (
            max((text_width(text, size) for text in texts), default=0)
            for texts, size in ((gpus, 13), (named.values(), 12))
        )
        left = gpu + row + 2 * _LEFT + 8 if beside else max(gpu, row) + _LEFT
        if left <= _MOST_NAMES * width:
            break
    return Names(gpus, named, left)


def _side_by_side(gantt_chart: Chart, strips: Sequence[int]) -> list[int]:
    """Return the strips of a run whose steps fit in one row: the first, and those next to it."""
    kept: list[int] = []
    taken: list[tuple[int, int]] = []
    for number in strips:
        bounds = gantt_chart.tracks[gantt_chart.strips[number].tracks[0]].bounds_ns
        low, high = int(bounds[0]), int(bounds[-1])
        if all(high <= begin or low >= end for begin, end in taken):
            kept.append(number)
            taken.append((low, high))
    return kept


# The labels of a static Gantt chart, by the rules of the page (drawing/labels.js): each on the block that it describes.


_SIZE = 11
"""Size of labels in pixels."""
_OTHERS = 0.5
"""Width in pixels of other colors that a label may cover."""
_LABELS = {Role.PHASES: Role.PHASE_LABELS, Role.EXPOSURE: Role.COLLECTIVES}
_COMMUNICATION = (int(Part.EXPOSED_COMM), WAITING, OVERLAPPED)


@dataclass(slots=True)
class _RowLabels:
    """Labels one row; *taken* are the places of those that it has."""

    canvas: Canvas
    layout: SvgLayout
    row: Row
    lod: Lod
    taken: list[tuple[float, float]]

    def draw(self, entries: Sequence[dict[str, Any]]) -> None:
        """Label the longest intervals first; *entries* name the collectives."""
        lane = self.layout.lane(self.row.track, _LABELS[self.row.role]) if self.row.role in _LABELS else None
        if lane is None or self.row.height < LABEL_RULES["row"]:
            return
        end_ns = self.layout.gantt_chart.end_ns
        least = LABEL_RULES["phase" if self.row.role is Role.PHASES else "width"] * end_ns / self.layout.width
        for index in longest(lane, 0, end_ns, least).tolist():
            if self.row.role is Role.PHASES:
                self._phase(lane, index)
            else:
                self._call(lane, index, entries[int(lane.name[index])])

    def _phase(self, lane: Lane, index: int) -> None:
        """Name a phase: ``Backward 18.8 ms``, ``Waiting for rank 2 · 963 ms``, ``F3``."""
        category, start, named = int(lane.category[index]), int(lane.start_ns[index]), int(lane.name[index])
        end, short = start + int(lane.duration_ns[index]), str(self.layout.looks[category]["short"])
        name = self.layout.gantt_chart.names[named - 1] if named else short
        ns = self._busy(category, start, end)
        # Where idle time interrupts a phase, a time next to its name would be read as that of the block under it.
        timed = ns >= (1 - LABEL_RULES["mixed"]) * (end - start)
        texts = [f"{name} {duration(ns)}", name] if timed else [name]
        if named and category == WAITING:
            texts = [f"{name} · {duration(ns)}", f"{short} {duration(ns)}", short] if timed else [name, short]
        self._place(texts, start, end, (category,), LABEL_RULES["apart"])

    def _call(self, lane: Lane, index: int, entry: dict[str, Any]) -> None:
        """Name a collective, ``AR bucket 0 · 26.2 MB``, and its wait, each on its own part, or both on the wait."""
        start, wait = int(lane.start_ns[index]), max(int(lane.wait_ns[index]) - 1, 0)
        end, texts = start + int(lane.duration_ns[index]), _collective_texts(entry)
        named = self._place(texts, start + wait, end, _COMMUNICATION)
        if not wait:
            return
        whom = waiting_label(int(lane.waits_for[index]) - 1)
        whom, time = whom[0].lower() + whom[1:], duration(wait)
        whole = self._busy(WAITING, start, start + wait) >= (1 - LABEL_RULES["mixed"]) * wait
        waits = [f"{whom} · {time}", f"waiting · {time}", "waiting"] if whole else [whom, "waiting"]
        both = [] if named else [*(f"{texts[-1]} · {text}" for text in waits), texts[-1]]
        self._place([*both, *waits], start, start + wait, (WAITING,))

    def _busy(self, category: int, start: float, end: float) -> float:
        """Return the time of a category between two times, in ns."""
        return float(np.diff(self.lod.busy(category, np.array([start, end])))[0])

    def _place(
        self, texts: Sequence[str], start: int, end: int, allowed: Sequence[int], apart: float = float("inf")
    ) -> bool:
        """Write the first text that has a place on one of the allowed colors; whether one has.

        Args:
            apart: distance in pixels between places that are tried, if not only the ends.
        """
        padding, to_ns = LABEL_RULES["padding"], self.layout.gantt_chart.end_ns / self.layout.width
        left, right = self.layout.x(start) + padding, self.layout.x(end) - padding
        for text in texts:
            width = text_width(text, _SIZE)
            spare = right - width - left
            if spare < 0:
                continue
            tries = 1 + int(spare // max(min(apart, spare), spare / LABEL_RULES["tries"], 1))
            xs = np.linspace(left, left + spare, tries)
            low, high = ((at - self.layout.left) * to_ns for at in (xs - padding + 1, xs + width + padding - 1))
            filled = np.array([self.lod.busy(k, high) - self.lod.busy(k, low) for k in range(WAITING + 1)]) / to_ns
            fills = filled >= (1 - LABEL_RULES["mixed"]) * (width + 2 * padding - 2)
            fills &= filled.sum(axis=0) - filled <= _OTHERS
            place, chosen = np.nonzero(fills[list(allowed)].T)
            for where, which in zip(xs[place].tolist(), chosen.tolist(), strict=True):
                if self._write(text, where, width, self.layout.looks[allowed[which]]["color"]):
                    return True
        return False

    def _write(self, text: str, x: float, width: float, color: str) -> bool:
        """Write a text on its color; whether it is free from other texts."""
        row = self.row
        if any(x - 4 < right and x + width + 4 > left for left, right in self.taken):
            return False
        self.taken.append((x - 4, x + width + 4))
        # A box in the block's color covers short gaps and the lines of a pattern under the text.
        if row.role is Role.PHASES or color in theme.PATTERNS:
            self.canvas.rect(x - 4, row.y + 1, width + 8, row.height - 2, color, round_=3, plain=True)
        self.canvas.text(x, row.y + row.height / 2, text, theme.ink_on(color), _SIZE)
        return True


def _collective_texts(entry: dict[str, Any]) -> tuple[str, ...]:
    kind = entry["kind"] if entry["kind"] != "other" else ""
    name = entry.get("title") or kind or shorten(entry.get("short", entry["name"]), 150, _SIZE)
    return (f"{name} · {byte_size(entry['bytes'])}", name) if entry["bytes"] else (name,)


# Exact level of detail for pictures drawn without a browser; static/data/lod.js is the same in JavaScript.
#
# Both are tested against the golden vectors in tests/golden/lod.json.


@dataclass(frozen=True, slots=True)
class Intervals:
    """One lane: intervals sorted by start, which can overlap; each column has an entry per interval."""

    start_ns: Int64
    duration_ns: Int64
    category: NDArray[np.integer]


class Lod:
    """The busy share of each pixel column of a lane, and the intervals that are wide enough to be drawn whole."""

    def __init__(self, lane: Intervals, categories: int) -> None:
        self.lane, ends = lane, lane.start_ns + lane.duration_ns
        masks = [lane.category == category for category in range(categories)]
        self._covers = [union(lane.start_ns[mask], ends[mask]) for mask in masks]

    def density(self, start_ns: float, end_ns: float, width: int) -> NDArray[np.float64]:
        """Return the busy share of each of *width* columns of a window, as an array (categories, columns)."""
        edges = start_ns + np.arange(width + 1) * ((end_ns - start_ns) / width)
        return np.array([np.diff(covered(cover, edges)) for cover in self._covers]) * (width / (end_ns - start_ns))

    def busy(self, category: int, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the time of a category before each of some times."""
        return covered(self._covers[category], times)

    def long(self, start_ns: float, end_ns: float, shortest_ns: float) -> Int64:
        """Return the intervals of at least *shortest_ns* that touch a window, as :func:`longest` does."""
        return longest(self.lane, start_ns, end_ns, shortest_ns)


def longest(lane: Intervals | Lane, start_ns: float, end_ns: float, shortest_ns: float) -> Int64:
    """Return the intervals of at least *shortest_ns* that touch a window, largest power of two first.

    Drawn in this order, no interval hides a much shorter one.
    """
    starts, durations = lane.start_ns, lane.duration_ns
    index = np.flatnonzero((durations >= shortest_ns) & (starts < end_ns) & (starts + durations > start_ns))
    power = np.floor(np.log2(np.maximum(durations[index], 1)))
    return index[np.argsort(-power, kind="stable")]


# The Gantt chart as static SVG, for slides and reports, drawn without a browser.
#
# As on the page, each pixel column is a stack of exact time shares, and intervals of three pixels are drawn whole.


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
_INK, _QUIET, _EDGE = "#111827", "#5B6472", "#8593A8"
_SAVED = {"saved": ("#0B7A50", "#E9F3EF"), "lost": ("#B3261E", "#F8EBEA")} | dict.fromkeys(
    ("shorter", "longer"), (_QUIET, "#F0F1F2")
)
"""Colors of the text and the background of time that a run saves, by what is said of it."""
_Box: TypeAlias = tuple[float, float, float, float]


def gantt_svg(run: Run, heading: bool = True, width: float = WIDTH) -> str:
    """Draw a run as SVG text.

    Args:
        heading: draw the run's name, facts and summary sentence; a page has its own.
        width: of the picture in pixels.
    """
    gantt_chart, head = chart(run), drawn_headline(run)
    if not gantt_chart.tracks or gantt_chart.end_ns <= 0:
        return message_svg(message(head.title or "Gantt chart", "There is no step in this run."), heading)
    lines = [(" · ".join(head.facts), _QUIET), (sentence(run).plain, _INK)]
    return _still(gantt_chart, head.title, lines if heading else [], width)


def pair_svg(a: Run, b: Run, by_step: bool = True, width: float = WIDTH) -> str:
    """Draw two runs on one axis as SVG text, A above B, with the time that B saves.

    Args:
        by_step: align each pair of steps; otherwise only the first.
        width: of the picture in pixels.

    Raises:
        DptraceError: one of the runs has no step.
    """
    aligned = align(a, b, by_step)
    lines = [(f"{letter}  {drawn_headline(run).line}", _QUIET) for letter, run in (("A", a), ("B", b))]
    lines += [(text, _QUIET if quiet else _INK) for text, quiet in answers(aligned)]
    gantt_chart, title = paired_chart(aligned), titles(a, b)
    return _still(gantt_chart, title, lines, min(width, WIDTH), aligned.time_saved())


def _still(
    gantt_chart: Chart, title: str, lines: list[tuple[str, str]], width: float, saved: Sequence[TimeSaved] = ()
) -> str:
    """Draw a chart below its heading: lines of text, each with its color; without any, there is no heading."""
    written = [(part, color) for text, color in lines for part in _lines(text, width - 2 * _LEFT)]
    legend = 46 + _LINE * len(written) if lines else 14
    rows = legend_height(svg_layout(gantt_chart, 0, width), _LEFT)
    layout = svg_layout(gantt_chart, legend + rows + 18, width)
    canvas = Canvas(width, layout.bottom + 12, title)
    if lines:
        canvas.text(_LEFT, 20, shorten(title, width - 2 * _LEFT, 18), size=17, bold=True)
    for number, (text, color) in enumerate(written):
        canvas.text(_LEFT, 44 + _LINE * number, text, color, _TEXT)
    draw_chart(canvas, layout, (_LEFT, legend), saved)
    return canvas.finish()


def draw_chart(canvas: Canvas, layout: SvgLayout, legend: tuple[float, float], saved: Sequence[TimeSaved] = ()) -> None:
    """Draw a chart's axis, rows and labels, and its legend, whose first line begins at *legend*.

    Args:
        saved: what one of two runs saves.
    """
    left, top = legend
    for x, y, category in _legend(layout, left):
        canvas.rect(x, top + y - 6, 15, 12, layout.looks[category]["color"], round_=2)
        canvas.text(x + 20, top + y, layout.looks[category]["label"], "#374151")
    _frame(canvas, layout)
    for stretch in saved:
        _time_saved(canvas, layout, stretch)
    lods = _lods(layout)
    mixed = [_mixed(lod.lane) for lod in lods]
    _short(canvas, layout, lods, mixed)
    entries = collective_entries(layout.gantt_chart)
    for row, lod, several in zip(layout.rows, lods, mixed, strict=True):
        _whole(canvas, layout, row, lod, several)
        _RowLabels(canvas, layout, row, lod, []).draw(entries)


def legend_height(layout: SvgLayout, left: float) -> float:
    """Return the height of the lines of a chart's legend, which begin at *left*, in pixels."""
    return max(y for _, y, _ in _legend(layout, left)) + _LEGEND_LINE


def _legend(layout: SvgLayout, left: float) -> list[tuple[float, float, int]]:
    """Return place and category of each entry, in as many lines as the width of the chart requires."""
    lanes = [layout.lane(row.track, row.role) for row in layout.rows]
    used = {int(c) for lane in lanes if lane for c in unique(lane.category)} | {int(Part.IDLE)}
    entries, x, y = [], left, 0.0
    for category in (int(category) for category in ORDER if int(category) in used):
        width = text_width(layout.looks[category]["label"]) + 20
        if x > left and x + width > layout.chart_width - RIGHT:
            x, y = left, y + _LEGEND_LINE
        entries.append((x, y, category))
        x += width + 16
    return entries


def _frame(canvas: Canvas, layout: SvgLayout) -> None:
    """Draw the axis, the step strips and edges, the names of GPUs and rows, and the idle background."""
    chart_, names, right = layout.gantt_chart, layout.names, layout.left - 8
    for value, label in _ticks(layout):
        x = layout.x(value)
        canvas.line(x, layout.top, x, layout.bottom, "#E3E7EC")
        canvas.text(x, layout.top - 9, label, "#374151", anchor="middle")
    canvas.line(layout.left, layout.top, layout.left + layout.width, layout.top, "#9CA3AF")
    for number, y in layout.strips:
        _strip(canvas, layout, number, y)
    for y, number in _heads(layout).items():
        strip = chart_.strips[number]
        lead = f"steps of {strip.run}" if strip.run else f"steps, rank {chart_.tracks[strip.tracks[0]].rank}"
        if len(chart_.strips) > 1 and text_width(lead) <= right:
            canvas.text(right, y + layout.strip_height / 2, lead, _QUIET, 12, "end")
    _edges(canvas, layout)
    _breaks(canvas, layout)
    beside = Role.PHASES in names.rows
    for row in layout.rows:
        track, middle = chart_.tracks[row.track], row.y + row.height / 2
        if row.role is Role.PHASES:
            at, anchor = (right, "end") if names.rows and not beside else (_LEFT, "start")
            canvas.text(at, middle, names.gpus[row.track], size=13, anchor=anchor, bold=True)
            apart = bool(len(track.ends_ns))
            starts, ends = track.bounds_ns[: -1 if apart else 1], track.ends_ns if apart else track.bounds_ns[-1:]
            for low, high in zip(map(layout.x, starts.tolist()), map(layout.x, ends.tolist()), strict=True):
                canvas.rect(low, row.y, high - low, row.height, theme.IDLE)
        elif row.role is Role.COMPUTE and track.coordinates and beside:
            canvas.text(_LEFT, middle, place_of_rank(track.coordinates), _QUIET, 11)
        canvas.text(right, middle, names.rows.get(row.role, ""), _QUIET, 12, "end")


def _ticks(layout: SvgLayout) -> tuple[tuple[float, str], ...]:
    """Return as many times for the axis as have room for their labels."""
    axes = [time_axis(layout.gantt_chart.end_ns, wanted=wanted) for wanted in range(8, 0, -1)]
    fits = (all(text_width(label) + 10 <= axis.room(layout.width) for _, label in axis.ticks) for axis in axes)
    return next((axis.ticks for axis, fit in zip(axes, fits, strict=True) if fit), axes[-1].ticks)


def _strip(canvas: Canvas, layout: SvgLayout, number: int, y: float) -> None:
    strip, height = layout.gantt_chart.strips[number], layout.strip_height
    for step, (name, (start, end, took)) in enumerate(zip(strip.steps, _spans(layout.gantt_chart, strip), strict=True)):
        left, right = layout.x(start), layout.x(end)
        wide, color = right - left - (1 if right - left > 4 else 0), "#D3DBE7" if step % 2 else "#E4E9F0"
        canvas.rect(left, y, wide, height, color)
        short, length = step_label(name), milliseconds(took)
        texts = (f"step {short} · {length} ms" if short != name else f"{name} · {length} ms", short)
        fitting = next((text for text in texts if text_width(text) + 8 <= right - left), "")
        if fitting:
            canvas.text((left + right) / 2, y + height / 2, fitting, "#2B3544", anchor="middle")


def _heads(layout: SvgLayout) -> dict[float, int]:
    """Return the first strip of each row of strips, by its y."""
    return {y: number for number, y in reversed(layout.strips)}


def _spans(gantt_chart: Chart, strip: Strip) -> Iterable[tuple[int, int, float]]:
    """Return start, end and length of each step of a strip: of its first rank.

    Of two runs, it is drawn from the first start to the last end, and its length is the mean of the ranks.
    """
    tracks = [gantt_chart.tracks[number] for number in strip.tracks]
    if not strip.run:
        steps = zip(tracks[0].bounds_ns[:-1].tolist(), tracks[0].step_ends_ns.tolist(), strict=True)
        return ((start, end, end - start) for start, end in steps)
    starts, ends = np.array([track.bounds_ns[:-1] for track in tracks]), np.array([track.ends_ns for track in tracks])
    drawn = starts.min(axis=0), ends.max(axis=0), (ends - starts).mean(axis=0)
    return zip(*(column.tolist() for column in drawn), strict=True)


def _edges(canvas: Canvas, layout: SvgLayout) -> None:
    """Draw lines through the rows where steps begin, one through all neighbors whose steps begin at one pixel."""
    tops = {row.track: row.y - 4 for row in reversed(layout.rows)}
    tops |= {layout.gantt_chart.strips[number].tracks[0]: y for y, number in _heads(layout).items()}
    ends = {row.track: row.y + row.height for row in layout.rows}
    places = [
        (track.run, [round(layout.x(bound)) for bound in track.bounds_ns.tolist()])
        for track in layout.gantt_chart.tracks
    ]
    for (_, bounds), tracks in groupby(range(len(places)), places.__getitem__):
        first, *_, last = (*tracks,) * 2
        if bounds[-1] - bounds[0] <= 4 * len(bounds):
            continue
        top = tops[first]
        for x in bounds:
            canvas.line(x, top, x, ends[last], _EDGE, dash="3 3")


def _breaks(canvas: Canvas, layout: SvgLayout) -> None:
    """Leave out the chart between two windows, and say for how long nothing is recorded."""
    top, height = layout.top, layout.bottom - layout.top
    for start, end, length in layout.gantt_chart.breaks.spans:
        left, wide, text = layout.x(start), layout.x(end) - layout.x(start), f"{duration(length)} not recorded"
        canvas.rect(left, top - 1, wide, height + 1, theme.CHROME["light"]["paper"])
        if wide >= _LINE and text_width(text) <= height:
            canvas.text(left + wide / 2, top + height / 2, text, _QUIET, anchor="middle", upright=True)


def _time_saved(canvas: Canvas, layout: SvgLayout, stretch: TimeSaved) -> None:
    """Mark the time that a run saves beside its rows, with as much text as fits."""
    rows = [row for row in layout.rows if row.track in layout.gantt_chart.strips[stretch.run].tracks]
    top, bottom = rows[0].y, rows[-1].y + rows[-1].height
    left, right = layout.x(stretch.from_ns), layout.x(stretch.to_ns)
    text = time_saved_text(stretch.saved_ns, stretch.share, stretch.certain)
    ink, shade = _SAVED[text.split()[2]]
    canvas.rect(left, top, right - left, bottom - top, shade)
    time, part = text.rsplit(" (", 1)
    for lines in ([text], [time, f"({part}"], [*time.rsplit(" ", 1), f"({part}"]):
        if max(map(text_width, lines)) + 8 <= right - left and len(lines) * _LEGEND_LINE <= bottom - top:
            for number, line in enumerate(lines):
                y = (top + bottom) / 2 + (number - (len(lines) - 1) / 2) * _LEGEND_LINE
                canvas.text((left + right) / 2, y, line, ink, anchor="middle", bold=True)
            return
    fitting = next((one for one in (text, time, time.rsplit(" ", 1)[0]) if text_width(one) + 8 <= bottom - top), "")
    if fitting and right - left >= 14:
        canvas.text((left + right) / 2, (top + bottom) / 2, fitting, ink, anchor="middle", bold=True, upright=True)


def _lods(layout: SvgLayout) -> list[Lod]:
    empty = np.zeros(0, np.int64)
    none = Intervals(empty, empty, empty)
    lanes = [layout.lane(row.track, row.role) for row in layout.rows]
    intervals = (Intervals(lane.start_ns, lane.duration_ns, lane.category) if lane else none for lane in lanes)
    return [Lod(lane, WAITING + 1) for lane in intervals]


def _mixed(lane: Intervals) -> NDArray[np.bool_]:
    """Return which intervals share time with one of another category: drawn whole, one would cover the other."""
    end_ns, found = lane.start_ns + lane.duration_ns, np.zeros(len(lane.start_ns), np.bool_)
    for category in unique(lane.category).tolist():
        own = lane.category == category
        others = union(lane.start_ns[~own], end_ns[~own])
        found[own] = covered(others, end_ns[own]) > covered(others, lane.start_ns[own])
    return found


def _short(canvas: Canvas, layout: SvgLayout, lods: list[Lod], mixed: list[NDArray[np.bool_]]) -> None:
    """Draw short and *mixed* intervals as stacks of time shares, as finely as MAX_SHAPES allows."""
    longest = _WHOLE * layout.gantt_chart.end_ns / layout.width
    brief = []
    for lod, several in zip(lods, mixed, strict=True):
        lane, kept = lod.lane, (lod.lane.duration_ns < longest) | several
        brief.append(Lod(Intervals(lane.start_ns[kept], lane.duration_ns[kept], lane.category[kept]), WAITING + 1))
    for wide in _COLUMNS:
        drawn: list[dict[int, list[_Box]]] = []
        shapes = 0
        for row, lod in zip(layout.rows, brief, strict=True):
            drawn.append(_stacks(layout, row, lod, wide))
            shapes += sum(map(len, drawn[-1].values()))
            if shapes > MAX_SHAPES and wide != _COLUMNS[-1]:
                break
        else:
            break
    for stacks in drawn:
        for category, boxes in stacks.items():
            canvas.rects(boxes, layout.looks[category]["color"])


def _stacks(layout: SvgLayout, row: Row, lod: Lod, wide: int) -> dict[int, list[_Box]]:
    columns = max(layout.width // wide, 1)
    share = lod.density(0, layout.gantt_chart.end_ns, columns)
    fit = row.height / np.maximum(1, share.sum(axis=0))
    finest = 0.5 if row.height >= _FINE else row.height / 6
    total = np.zeros(columns)
    stacks: dict[int, list[_Box]] = {}
    for category in map(int, ORDER):
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


def _whole(canvas: Canvas, layout: SvgLayout, row: Row, lod: Lod, mixed: NDArray[np.bool_]) -> None:
    lane = lod.lane
    end = layout.gantt_chart.end_ns
    boxes: dict[int, list[_Box]] = {}
    apart = row.role in (Role.COMPUTE, Role.EXPOSURE)
    long = lod.long(0, end, _WHOLE * end / layout.width)
    for index in long[~mixed[long]].tolist():
        start = int(lane.start_ns[index])
        left, right = layout.x(start), layout.x(start + int(lane.duration_ns[index]))
        line = 0.8 if apart and right - left > _SEPARATED else 0.0
        boxes.setdefault(int(lane.category[index]), []).append((left, row.y, right - left - line, row.height))
    for category in sorted(boxes):
        canvas.rects(boxes[category], layout.looks[category]["color"])


FIGURE_WIDTH = 640
"""Width in pixels: as wide as a page of a paper (178 mm), letters are 2.5 to 3.6 mm high."""
FIGURE_WIDTHS = Number(400, 2000, whole=True)
_MOST_RANKS = 8
"""Number of ranks that are drawn where none are chosen."""
_TEXT, _LINE = 13, 19.0
"""Size of the annotations and height of their lines in pixels."""
_MARK = "#B00020"
_BADGE = 8.0
"""Radius of an annotation's number in pixels."""
_FILLED, _NEXT, _MOST_FRAMES = 0.75, 4, 8
"""Share of a frame that what it marks fills; distance in pixels up to which two intervals share one; maximum number of
frames in a row."""


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
    part = part if every_rank else some_ranks(part)
    gantt_chart = chart(part)
    if not gantt_chart.tracks or gantt_chart.end_ns <= 0:
        return message_svg(message(headline(run).title or "Gantt chart", "There is no step in this run."))
    legend = legend_height(svg_layout(gantt_chart, 0, width), _LEFT)
    layout = svg_layout(gantt_chart, legend + 30, width)
    notes = _annotations(part, layout) if annotate else []
    canvas = Canvas(width, layout.bottom + _height(notes) + 6, drawn_headline(run).line)
    draw_chart(canvas, layout, (_LEFT, 12))
    _draw_annotations(canvas, layout, notes)
    return canvas.finish()


def some_ranks(run: Run) -> Run:
    """Choose the most notable ranks of many, in their order."""
    if len(run.ranks) <= _MOST_RANKS:
        return run
    chosen = [run.timelines[one.index].rank for one in notable_ranks(run)]
    return run.select(ranks=list(dict.fromkeys(chosen))[:_MOST_RANKS])


class _Mark(NamedTuple):
    """A mark in a row: what it encloses, the longest first, and whether that is framed; else it is bracketed."""

    track: int
    role: Role
    spans: list[tuple[int, int]]
    framed: bool


class _Annotation(NamedTuple):
    """The marks of a finding, and its text in lines."""

    marks: list[_Mark]
    lines: list[str]


def _annotations(run: Run, layout: SvgLayout) -> list[_Annotation]:
    """Return the most expensive findings that count something in the chart."""
    annotations, px_ns = [], layout.gantt_chart.end_ns / layout.width
    for finding in top_findings(findings_of(run)):
        parts = counted(finding, run, layout.gantt_chart)
        framed = [(one, frames(one.start_ns, one.end_ns, px_ns)) for one in parts]
        marks = [_Mark(one.track, one.role, spans, True) for one, spans in framed if spans]
        ns, of_step = finding.figure
        counted_only = "" if finding.has_gain else f" counted; {GAIN_UNKNOWN}"
        text = f"{finding.text} {duration(ns)}, {share(of_step)} of a step{counted_only}."
        if parts and not marks:
            first = parts[0]
            marks = [_Mark(first.track, first.role, [(int(first.start_ns[0]), int(first.end_ns.max()))], False)]
            text += f" On rank {layout.gantt_chart.tracks[first.track].rank} they are scattered over the bracket."
        if marks:
            room = layout.chart_width - 2 * RIGHT - 3 * _BADGE
            annotations.append(_Annotation(marks, list(_lines(text, room))))
    return annotations[:MOST]


def _lines(text: str, room: float) -> Iterator[str]:
    """Break a text into lines of at most *room* pixels."""
    line = ""
    for word in re.split(r"(?<!rank) (?!%|[mµ]?s\b)", text):
        if line and text_width(f"{line} {word}", _TEXT) > room:
            yield line
            line = ""
        line = shorten(f"{line} {word}".strip(), room, _TEXT)
    yield line


def _height(annotations: list[_Annotation]) -> float:
    return sum(len(one.lines) * _LINE + 4 for one in annotations) + (8 if annotations else 0)


def _draw_annotations(canvas: Canvas, layout: SvgLayout, annotations: list[_Annotation]) -> None:
    """Mark what each finding counted, and write it below the chart."""
    y = layout.bottom + 8
    corners = [[_draw_mark(canvas, layout, mark) for mark in one.marks] for one in annotations]
    placed: list[tuple[float, float]] = []
    for number, (one, own) in enumerate(zip(annotations, corners, strict=True), 1):
        numbered: list[float] = []
        for x, top in own:
            if all(abs(x - other) > 4 * _BADGE for other in numbered):
                numbered.append(x)
                at = min(x, layout.chart_width - _BADGE - 1)
                while any(max(abs(at - left), abs(top - high)) < 2 * _BADGE for left, high in placed):
                    at -= 2 * _BADGE + 1
                placed.append((at, top))
                _badge(canvas, at, top, number)
        _badge(canvas, RIGHT, y + _LINE / 2, number)
        for line in one.lines:
            canvas.text(RIGHT + 2 * _BADGE, y + _LINE / 2, line, size=_TEXT)
            y += _LINE
        y += 4


def _draw_mark(canvas: Canvas, layout: SvgLayout, mark: _Mark) -> tuple[float, float]:
    """Frame or bracket what a mark encloses; return the upper right corner of the longest."""
    rows = {row.role: row for row in layout.rows if row.track == mark.track}
    row = rows.get(mark.role, rows[Role.PHASES])
    top, bottom = row.y - 1.5, row.y + row.height + 1.5
    for start, end in mark.spans:
        left, right = layout.x(start) - 1, layout.x(end) + 1
        low = bottom if mark.framed else row.y + 4
        corners = [(left, low), (left, top), (right, top), (right, low)]
        canvas.polyline([*corners, corners[0]] if mark.framed else corners, _MARK, 1.6)
    return layout.x(mark.spans[0][1]) + 1, top


def frames(start_ns: Int64, end_ns: Int64, px_ns: float) -> list[tuple[int, int]]:
    """Return what frames around intervals enclose, the longest first.

    Intervals share a frame if they are next to each other and fill it. There are none where they would hold less than
    half of the intervals' time: frames around many short gaps would enclose the kernels between them.
    """
    found: list[tuple[int, int, int]] = []
    for start, end in zip(start_ns.tolist(), end_ns.tolist(), strict=True):
        found.append((start, end, end - start))
        while len(found) > 1:
            (first, stop, ns), (begin, last, more) = found[-2:]
            if begin - stop > _NEXT * px_ns or ns + more < _FILLED * (last - first):
                break
            found[-2:] = [(first, max(stop, last), ns + more)]
    longest = sorted((one for one in found if one[1] - one[0] >= px_ns), key=lambda one: -one[2])[:_MOST_FRAMES]
    held = sum(ns for *_, ns in longest)
    return [(start, end) for start, end, _ in longest] if 2 * held >= int((end_ns - start_ns).sum()) else []


def _badge(canvas: Canvas, x: float, y: float, number: int) -> None:
    canvas.rect(x - _BADGE, y - _BADGE, 2 * _BADGE, 2 * _BADGE, _MARK, round_=_BADGE)
    canvas.text(x, y, str(number), "#FFFFFF", 11, "middle", bold=True)
