"""Start times and durations of lanes as small numbers: what follows from other intervals is not stored again.

Most lanes store the differences of successive starts. Intervals of phases and of communication begin where the one
before ends, or nearly so: they store that gap. Idle time is what the phases leave: it stores how far it is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dptrace.core.intervals import Int64, union
from dptrace.viewers.gantt.chart import Lane, Role

__all__ = ["DELTAS", "GAPS", "REST", "pack_times"]

DELTAS, GAPS, REST = "deltas", "gaps", "rest"
"""How a lane stores its times: differences of starts; gaps; differences from what the phases of its track leave."""


def pack_times(lanes: Sequence[Lane]) -> list[tuple[str, Int64, Int64]]:
    """Return for each lane how it stores its times, its starts and its durations, as non-negative numbers."""
    packed = []
    phases: Lane | None = None
    for lane in lanes:
        if lane.role is Role.PHASES:
            phases = lane
        packed.append(_packed(lane, phases if phases is not None and phases.track == lane.track else None))
    return packed


def _packed(lane: Lane, phases: Lane | None) -> tuple[str, Int64, Int64]:
    start, duration = lane.start_ns, lane.duration_ns
    if lane.role is Role.IDLE and phases is not None and len(lane):
        begin, length = _left_by(phases, start, np.append(start[:1], (start + duration)[:-1]))
        if (start >= begin).all():
            return REST, start - begin, _folded(duration - length)
    if lane.role in (Role.PHASES, Role.EXPOSURE, Role.IDLE):
        return GAPS, _folded(start - np.append(start[:1], (start + duration)[:-1])), duration
    return DELTAS, np.diff(start, prepend=start[:1]), duration


def _left_by(phases: Lane, start: Int64, previous: Int64) -> tuple[Int64, Int64]:
    """Return where idle time begins at or after each *previous* time, and how long it would last from each *start*."""
    busy = phases.duration_ns > 0
    begins = phases.start_ns[busy]
    run_begin, run_end = union(begins, begins + phases.duration_ns[busy])
    run = np.searchsorted(run_begin, previous, "right") - 1
    begin = np.where(run >= 0, np.maximum(previous, np.append(run_end, 0)[run]), previous)
    following = np.searchsorted(begins, start, "left")
    until = np.append(begins, 0)[following]
    return begin, np.where(following < len(begins), until - start, 0)


def _folded(values: Int64) -> Int64:
    """Map 0, -1, 1, -2, ... to 0, 1, 2, 3, ..."""
    return np.where(values < 0, -2 * values - 1, 2 * values)
