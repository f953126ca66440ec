"""Why a GPU was idle: the cause of each gap, from the launch of the work that ended it.

::

    host      ░░░ DataLoader ░░░ launch b          launch c, d
    GPU     a ██                      ██ b      c ██      ██ d
              └──── host late ───────┘└─ late ─┘  └waiting┘
                 data loading, then host-bound
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.split import part_intervals_of
from dptrace.core.intervals import EMPTY, Int64, IntervalSet, covered, intersect, subtract, union, union_all
from dptrace.timeline.model import UNKNOWN, HostCause, Timeline

__all__ = ["CAUSES", "Idle", "idle"]

CAUSES = (
    "data_loading_ns",
    "allocator_ns",
    "synchronizing_ns",
    "host_bound_ns",
    "launch_latency_ns",
    "waiting_ns",
    "bubble_ns",
)
"""The host waited in a DataLoader's next; in a call that allocates or frees memory; in a call that synchronizes with
the device; the host was late for another reason; the work was launched in time and began within launch latency; it was
launched in time and waited for another stream's event or a copy; a pipeline stage waited for another."""

_LATENCY_NS = 20_000
"""A kernel launched in time on a free stream starts within this; launches take 3 to 15 µs on GPUs since 2016."""
_LONG_NS = 50_000
"""Shortest gap that is kept to be named."""


class Idle(msgspec.Struct, frozen=True):
    """Idle time of one device by cause."""

    causes: dict[str, Int64]
    """By the names in CAUSES: ns in each step; the causes add up to the step's idle time exactly."""
    idle: IntervalSet
    """All idle time from the first step to the last."""
    sets: dict[str, IntervalSet]
    """The idle time of each cause, by the names in CAUSES."""
    host_gaps: IntervalSet
    """The gaps that ended with work which the host launched late, as far as they are long enough to look at."""


def idle(timeline: Timeline, part_intervals: list[IntervalSet] | None = None) -> Idle:
    """Assign a cause to every nanosecond of idle time.

    Args:
        part_intervals: the result of ``split.part_intervals_of``, if already computed.
    """
    part_intervals = part_intervals_of(timeline) if part_intervals is None else part_intervals
    bounds = timeline.windows.bounds
    window: IntervalSet = (bounds[:1], bounds[-1:]) if len(bounds) and bounds[0] < bounds[-1] else (bounds[:0],) * 2
    gaps = subtract(window, union_all(part_intervals))
    launched = _launched(timeline, gaps)
    host_gaps = _some((gaps[0], launched), launched > gaps[0])
    short = gaps[1] - launched <= _LATENCY_NS
    latency, waiting = (_some((launched, gaps[1]), (launched < gaps[1]) & chosen) for chosen in (short, ~short))
    loading = intersect(host_gaps, timeline.data_loading)
    rest = subtract(host_gaps, loading)
    bubble = _bubble(timeline, rest, waiting)
    rest = subtract(rest, bubble)
    allocator = intersect(rest, timeline.host.intervals(HostCause.ALLOCATOR))
    synchronizing = intersect(rest, timeline.host.intervals(HostCause.SYNCHRONIZING))
    host = subtract(rest, union_all([allocator, synchronizing]))
    sets = (loading, allocator, synchronizing, host, latency, subtract(waiting, bubble), bubble)
    causes = {name: np.diff(covered(part, bounds)) for name, part in zip(CAUSES, sets, strict=True)}
    return Idle(
        causes, gaps, dict(zip(CAUSES, sets, strict=True)), _some(host_gaps, host_gaps[1] - host_gaps[0] >= _LONG_NS)
    )


def _bubble(timeline: Timeline, late: IntervalSet, waiting: IntervalSet) -> IntervalSet:
    """Return the idle time caused by the pipeline's schedule.

    This is host lateness spent in a receive, and waiting between the actions of a step: after the first was called and
    outside all of them.
    """
    actions = timeline.actions
    if not len(actions):
        return EMPTY
    order = np.argsort(actions.step, kind="stable")
    _, starts = np.unique(actions.step[order], return_index=True)
    schedule = union(
        np.minimum.reduceat(actions.called_ns[order], starts), np.maximum.reduceat(actions.end_ns[order], starts)
    )
    between = subtract(schedule, union(actions.start_ns, actions.end_ns))
    return union_all([intersect(late, timeline.receiving), intersect(waiting, between)])


def _some(intervals: IntervalSet, chosen: NDArray[np.bool_]) -> IntervalSet:
    return intervals[0][chosen], intervals[1][chosen]


def _launched(timeline: Timeline, gaps: IntervalSet) -> Int64:
    """Return until when each gap is the host's: the launch of what ends it, or its start where that was earlier."""
    start, end = gaps
    first = np.searchsorted(timeline.start_ns, end, side="left")
    last = np.searchsorted(timeline.start_ns, end, side="right")
    ended = last > first  # otherwise the end of the last step ends the gap, and the host launched nothing more
    # The earliest launch of the work that starts at the gap's end: a pair of bounds each, padded for reduceat.
    launch = np.append(timeline.launch_ns, UNKNOWN)
    bounds = np.stack((first, last), axis=1).reshape(-1)
    earliest = np.minimum.reduceat(launch, bounds)[::2] if len(bounds) else np.empty(0, np.int64)
    until: Int64 = np.where(ended, np.clip(earliest, start, end), end)
    return until
