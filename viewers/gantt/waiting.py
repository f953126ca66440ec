"""Divide exposed communication in the rows of a Gantt chart into waiting for later ranks and transfer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.transfers import CallWaits, ExposedWait, sum_of_waits
from dptrace.analysis.per_gpu.split import Part, Segments
from dptrace.core.intervals import Int64, covered
from dptrace.run.run import Run
from dptrace.timeline.model import Timeline

__all__ = ["ranks_waited_for", "why_unknown", "with_waiting_parts", "with_waiting_pieces"]


def why_unknown(run: Run) -> str:
    """Return why the waits of some of a run's collectives are not known; empty where all are."""
    if not sum_of_waits(run.cross_rank.exposed_waits)["exposed_unmatched_ns"]:
        return ""
    ranks = len({timeline.rank for timeline in run.timelines})
    if run.world_size > ranks:
        return f"only {ranks} of {run.world_size} ranks {'is' if ranks == 1 else 'are'} recorded"
    return "not all ranks of the collective are recorded, or they do not match"


def with_waiting_parts(parts: Segments, wait: ExposedWait, category: int) -> Segments:
    """Set *category* for the waiting in a partition's exposed communication."""
    exposed = parts.part == Part.EXPOSED_COMM
    start, end = parts.start_ns[exposed], parts.end_ns[exposed]
    edges = np.column_stack(wait.intervals).ravel()
    low, high = np.searchsorted(edges, start, side="right"), np.searchsorted(edges, end, side="left")
    times = np.maximum(high - low, 0) + 1
    index = np.repeat(np.arange(len(start)), times)
    nth = np.arange(len(index)) - np.repeat(np.cumsum(times) - times, times)
    padded = np.append(edges, 0)
    begin = np.where(nth == 0, start[index], padded[np.minimum(low[index] + nth - 1, len(edges))])
    stop = np.where(nth == times[index] - 1, end[index], padded[np.minimum(low[index] + nth, len(edges))])
    waits = covered(wait.intervals, stop) > covered(wait.intervals, begin)
    part = np.where(waits, category, Part.EXPOSED_COMM)
    return _merged(parts, exposed, begin, stop, part, parts.source[exposed][index])


def with_waiting_pieces(pieces: Segments, timeline: Timeline, calls: CallWaits, category: int) -> Segments:
    """Set *category* for the waiting in the exposed pieces of each collective.

    Args:
        pieces: the timeline's exposure, by category.
        calls: the waits of the timeline's collectives.
    """
    wait_ns = np.zeros(len(timeline), np.int64)
    wait_ns[timeline.collective >= 0] = np.maximum(calls.wait_ns, 0)
    exposed = pieces.part == Part.EXPOSED_COMM
    start, end, source = pieces.start_ns[exposed], pieces.end_ns[exposed], pieces.source[exposed]
    turn = np.clip(timeline.start_ns[source] + wait_ns[source], start, end)
    begin, stop = np.concatenate((start, turn)), np.concatenate((turn, end))
    part = np.repeat([category, int(Part.EXPOSED_COMM)], len(start))
    kept = stop > begin
    # An empty piece stays one.
    kept[len(start) :] |= start == end
    return _merged(pieces, exposed, begin[kept], stop[kept], part[kept], np.tile(source, 2)[kept])


def ranks_waited_for(times: Int64, timeline: Timeline, calls: CallWaits) -> Int64:
    """Return the rank that the device waits for at each of *times*, or -1: by the last collective that began."""
    waiting = calls.exposed_ns > 0
    start = timeline.start_ns[timeline.collective >= 0][waiting]
    call = np.searchsorted(start, times, side="right") - 1
    until = np.append(start + calls.wait_ns[waiting], np.iinfo(np.int64).min)[call]
    ranks = np.append(calls.waits_for[waiting].astype(np.int64), -1)[call]
    return np.where(times < until, ranks, -1)


def _merged(
    whole: Segments,
    replaced: NDArray[np.bool_],
    start: Int64,
    end: Int64,
    part: NDArray[np.integer],
    source: NDArray[np.integer],
) -> Segments:
    """Replace some segments by others, in order of their starts."""
    kept = ~replaced
    start = np.concatenate((whole.start_ns[kept], start))
    order = np.argsort(start, kind="stable")
    return Segments(
        start[order],
        np.concatenate((whole.end_ns[kept], end))[order],
        np.concatenate((whole.part[kept], part)).astype(np.uint8)[order],
        np.concatenate((whole.source[kept], source)).astype(np.int32)[order],
    )
