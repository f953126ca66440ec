"""The layout of a static Gantt chart: rows, step strips, time axis."""

from __future__ import annotations

from dataclasses import dataclass

from dptrace.viewers.base.svg_canvas import text_width
from dptrace.viewers.gantt.chart import Chart, Lane, Role

__all__ = ["RIGHT", "STRIP", "WIDTH", "Row", "SvgLayout", "svg_layout"]

WIDTH, RIGHT = 1400.0, 24.0
"""Width of the chart and of its right margin in pixels."""
STRIP = 18.0
"""Height of a step strip in pixels."""

_HEIGHTS: dict[int, dict[Role, float]] = {
    8: {Role.PHASES: 20, Role.COMPUTE: 18, Role.EXPOSURE: 15, Role.MEMORY: 8},
    24: {Role.PHASES: 17, Role.EXPOSURE: 9},
    10**9: {Role.PHASES: 11},
}
"""Row heights in pixels by maximum number of GPUs."""
_ROW_NAME, _BETWEEN = 100.0, 7.0
"""Width of a row's name and gap between GPUs in pixels."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the chart: the track and role of its lane, and its place in pixels."""

    track: int
    role: Role
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class SvgLayout:
    """The places of rows and strips in pixels."""

    gantt_chart: Chart
    left: float
    top: float
    rows: tuple[Row, ...]
    strips: tuple[tuple[float, int], ...]
    """Top and index of each strip that is drawn; they lie side by side."""
    bottom: float
    chart_width: float = WIDTH
    """The width of the whole chart in pixels."""

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
    """Place the rows of a chart below *top*; with many GPUs, each has fewer and lower rows."""
    heights = next(rows for limit, rows in _HEIGHTS.items() if len(gantt_chart.tracks) <= limit)
    shown = {role: height for role, height in heights.items() if role is Role.PHASES or gantt_chart.has(role)}
    names = _ROW_NAME if len(shown) > 2 else 16
    left = max(text_width(track.label, 13) for track in gantt_chart.tracks) + names + 20
    rows, y = [], top + 6
    strips = tuple((y, number) for number in _side_by_side(gantt_chart))
    y += STRIP + 5
    for track in range(len(gantt_chart.tracks)):
        for role, height in shown.items():
            rows.append(Row(track, role, y, height))
            y += height + 2
        y += _BETWEEN if len(shown) > 1 else 0
    return SvgLayout(gantt_chart, left, top, tuple(rows), strips, y, width)


def _side_by_side(gantt_chart: Chart) -> list[int]:
    """Return the strips whose steps fit in one row: the first, and those next to it."""
    kept: list[int] = []
    taken: list[tuple[int, int]] = []
    for number, strip in enumerate(gantt_chart.strips):
        bounds = gantt_chart.tracks[strip.tracks[0]].bounds_ns
        low, high = int(bounds[0]), int(bounds[-1])
        if all(high <= begin or low >= end for begin, end in taken):
            kept.append(number)
            taken.append((low, high))
    return kept
