"""The rows of the terminal's picture: intervals by part, and the look of each cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dptrace.analysis.cross_rank.transfers import ExposedWait
from dptrace.analysis.per_gpu.split import Part, exposure, partition
from dptrace.comparison.step_alignment import AlignedSteps
from dptrace.core.intervals import EMPTY, Int64, IntervalSet, covered, intersect, subtract, union, union_all
from dptrace.timeline.model import Timeline
from dptrace.viewers.base.time_saved import time_saved_text
from dptrace.viewers.gantt.chart import OVERLAPPED, WAITING, Chart, Lane, Role
from dptrace.viewers.gantt.pair.chart import paired_chart
from dptrace.viewers.terminal.gantt.cell_style import (
    EXPOSED,
    FAINT,
    IDLE,
    LOOKS,
    NOTHING,
    OVERLAP,
    WAITS,
    Look,
    time_saved_look,
)

__all__ = ["Row", "paired_rows", "row_of"]

MIN_VISIBLE_SHARE = 0.1
"""Share of an idle cell from which its largest part is shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU's time, by part, in ns on the picture's axis."""

    parts: tuple[IntervalSet, ...]
    """By :class:`Part`."""
    communication: tuple[IntervalSet, IntervalSet]
    """Exposed, overlapped."""
    time_saved: tuple[tuple[IntervalSet, Look], ...] = ()
    """Time in which this run is done with a step and the other is not."""
    waiting: IntervalSet = field(default_factory=lambda: EMPTY)
    """The part of the exposed time in which the GPU waited for later ranks."""

    def phases(self, edges: Int64) -> list[Look]:
        """Return for each cell between two edges the part that takes most of it."""
        time_saved = [interval for interval, _ in self.time_saved]
        looks = [*(LOOKS[part] for part in Part), WAITS, *(look for _, look in self.time_saved)]
        parts = list(self.parts)
        waiting = intersect(self.waiting, parts[Part.EXPOSED_COMM])
        parts[Part.EXPOSED_COMM] = subtract(parts[Part.EXPOSED_COMM], waiting)
        cells = _largest([*parts, waiting, *time_saved], looks, edges)
        time = np.array([np.diff(covered(part, edges)) for part in self.parts[: Part.IDLE]])
        seen = time.max(axis=0) >= MIN_VISIBLE_SHARE * np.diff(edges)
        # Otherwise a GPU that idles most of the time would show nothing of its work.
        largest = [FAINT[Part(part)] for part in time.argmax(axis=0)]
        return [
            faint if cell is IDLE and visible else cell
            for cell, faint, visible in zip(cells, largest, seen, strict=True)
        ]

    def exposure(self, edges: Int64) -> list[Look]:
        """Return for each cell whether most of it is communication: exposed, overlapped or waiting."""
        exposed, overlapped = self.communication
        return _largest([subtract(exposed, self.waiting), overlapped, self.waiting], [EXPOSED, OVERLAP, WAITS], edges)


def _largest(sets: Sequence[IntervalSet], looks: Sequence[Look], edges: Int64) -> list[Look]:
    """Return for each cell the look that takes most of its time; NOTHING where most of it is in no set."""
    time = [np.diff(covered(intervals, edges)) for intervals in sets]
    time.append(np.diff(edges) - np.sum(time, axis=0))
    return [[*looks, NOTHING][largest] for largest in np.argmax(time, axis=0)]


def row_of(timeline: Timeline, wait: ExposedWait) -> Row:
    """Return a GPU's row, on its own clock."""
    pieces, exposures = partition(timeline), exposure(timeline)
    parts = [union(pieces.start_ns[pieces.part == part], pieces.end_ns[pieces.part == part]) for part in Part]
    exposed, overlapped = (
        union(exposures.start_ns[exposures.part == x], exposures.end_ns[exposures.part == x]) for x in (1, 0)
    )
    return Row(tuple(parts), (exposed, overlapped), waiting=wait.intervals)


def paired_rows(aligned: AlignedSteps) -> tuple[list[Row], list[Row]]:
    """Return the rows of A's and of B's GPUs, on their common axis."""
    drawn = paired_chart(aligned)
    time_saved: tuple[list[tuple[IntervalSet, Look]], ...] = ([], [])
    for gap in aligned.time_saved():
        interval = np.array([gap.from_ns], np.int64), np.array([gap.to_ns], np.int64)
        certain = gap.certain
        look = time_saved_look(time_saved_text(gap.saved_ns, gap.share, certain), gap.saved_ns > 0 if certain else None)
        time_saved[gap.run].append((interval, look))
    rows: tuple[list[Row], list[Row]] = ([], [])
    for which, run in enumerate(aligned.runs):
        shifts = aligned.shifts(which)
        for device in range(len(run.devices)):
            spans = run.start_ns[device] + shifts[device], run.end_ns[device] + shifts[device]
            track = device + which * len(aligned.a.devices)
            rows[which].append(_row(drawn, track, union(*spans), tuple(time_saved[which]) if device == 0 else ()))
    return rows


def _row(drawn: Chart, track: int, spans: IntervalSet, time_saved: tuple[tuple[IntervalSet, Look], ...]) -> Row:
    phases, exposure_lane = (
        next(lane for lane in drawn.lanes if lane.track == track and lane.role is role)
        for role in (Role.PHASES, Role.EXPOSURE)
    )
    parts, waiting = [_spans(phases, part) for part in Part], _spans(phases, WAITING)
    parts[Part.EXPOSED_COMM] = union_all([parts[Part.EXPOSED_COMM], waiting])
    busy = union(phases.start_ns, phases.start_ns + phases.duration_ns)
    parts[Part.IDLE] = subtract(spans, busy)
    return Row(
        tuple(parts),
        (
            union_all([_spans(exposure_lane, Part.EXPOSED_COMM), _spans(exposure_lane, WAITING)]),
            _spans(exposure_lane, OVERLAPPED),
        ),
        time_saved,
        waiting,
    )


def _spans(lane: Lane, category: int) -> IntervalSet:
    chosen = lane.category == category
    start = lane.start_ns[chosen]
    return union(start, start + lane.duration_ns[chosen])
