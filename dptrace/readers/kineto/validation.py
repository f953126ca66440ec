"""Checks of one rank's events: impossible ones are dropped or shortened, and reported."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.arrays import median
from dptrace.core.intervals import Int64
from dptrace.core.units import plural
from dptrace.readers.trace import Category

__all__ = ["EventColumns", "validate_events"]

_DAY = 86_400 * 10**9
"""Longer than any recording: Kineto keeps all of it in memory."""
_LAST = 2**62
"""146 years in ns, so that a sum with the clock's base fits 64 bits."""
_WITHIN = 3
_NEAR = 8
"""A device event overruns if ``_WITHIN`` of the next ``_NEAR`` events on its stream lie within it."""


class EventColumns(msgspec.Struct, frozen=True):
    """The columns that are checked, an entry per event, in the order of the file."""

    start: Int64
    end: Int64
    category: NDArray[np.uint8]
    name: NDArray[np.int32]
    thread: NDArray[np.int32]
    correlation: Int64
    device: NDArray[np.int32]
    stream: Int64


def validate_events(
    rows: EventColumns, has_comm_args: NDArray[np.bool_], waits: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], Int64, list[str]]:
    """Return which events to keep, when each ends, and what was wrong, a sentence each.

    Args:
        has_comm_args: which events carry a collective's metadata.
        waits: which events have the name of a communication kernel, which may wait for its peers.
    """
    sentences: list[str] = []

    def without(kept: NDArray[np.bool_], bad: NDArray[np.bool_], why: str) -> NDArray[np.bool_]:
        bad = kept & bad
        if bad.any():
            sentences.append(f"{plural(int(bad.sum()), 'event')} left out {why}.")
        return kept & ~bad

    keep = np.ones(len(rows.start), np.bool_)
    beyond = (np.abs(rows.start) >= _LAST) | (rows.end >= _LAST)
    keep = without(keep, beyond, "with times beyond any clock")
    keep = without(keep, rows.end < rows.start, "with a negative duration")
    keep = without(keep, _far_in_time(rows, keep), "more than a day away from the others")
    on_device = (rows.category == Category.KERNEL) | (rows.category == Category.MEMORY)
    # On the CPU an operator may run twice within a microsecond; gloo's collectives take longer.
    twice = _repeated(rows, keep & np.where(on_device, rows.correlation > 0, has_comm_args))
    keep = without(keep, twice, "that the file holds twice")
    end, cut = _trim_overlaps(rows, keep & on_device, has_comm_args | waits)
    if cut:
        sentences.append(
            f"{plural(cut, 'event')} on a GPU cut short: each overlaps several later events on its stream, which is "
            "impossible."
        )
    return keep, end, sentences


def _far_in_time(rows: EventColumns, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Find events far from all others: times that were never set (pytorch#188481), or mixed clocks."""
    far = np.zeros(len(keep), np.bool_)
    if not keep.any() or int(rows.end[keep].max()) - int(rows.start[keep].min()) <= _DAY:
        return far
    set_times = keep & ((rows.start != 0) | (rows.end != 0))
    middle = int(median(rows.start[set_times])) if set_times.any() else 0
    far[:] = (rows.start < middle - _DAY) | (rows.end > middle + _DAY)
    return far


def _repeated(rows: EventColumns, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Find repeated copies of an event that takes time: no stream runs the same event twice at once."""
    found = np.zeros(len(among), np.bool_)
    events = np.flatnonzero(among & (rows.end > rows.start))
    order = events[np.argsort(rows.start[events], kind="stable")]
    touching = rows.start[order[1:]] == rows.start[order[:-1]]
    if not touching.any():
        return found
    events = order[np.append(touching, False) | np.append(False, touching)]
    columns = (rows.start, rows.end, rows.name, rows.correlation, rows.stream, rows.device, rows.thread)
    order = events[np.lexsort([column[events] for column in columns])]
    same = np.ones(len(order) - 1, np.bool_)
    for column in columns:
        same &= column[order[1:]] == column[order[:-1]]
    found[order[1:][same]] = True
    return found


def _trim_overlaps(rows: EventColumns, on_device: NDArray[np.bool_], waits: NDArray[np.bool_]) -> tuple[Int64, int]:
    """Cut events that overrun at the start of the next event on their stream (TraceLens#669: ROCm, after a long stall).

    Some overlaps are real and not cut: neighbors (programmatic dependent launch), the branches of a graph, whose
    kernels share one correlation, and a collective that waits for its peers on a stream that ROCm reports wrongly.
    """
    events = np.flatnonzero(on_device & (rows.stream >= 0))
    order = events[np.lexsort((rows.start[events], rows.thread[events]))]
    start, end, thread, stream = (column[order] for column in (rows.start, rows.end, rows.thread, rows.stream))
    if len(order) <= _WITHIN or not (end[:-_WITHIN] > start[_WITHIN:])[thread[:-_WITHIN] == thread[_WITHIN:]].any():
        return rows.end, 0
    within, then = np.zeros(len(order), np.int64), np.full(len(order), np.iinfo(np.int64).max)
    for k in range(1, min(_NEAR, len(order) - 1) + 1):
        follows = (thread[k:] == thread[:-k]) & (stream[k:] == stream[:-k]) & (start[k:] > start[:-k])
        within[:-k] += follows & (end[k:] <= end[:-k]) & (end[k:] > start[k:])
        then[:-k] = np.where(follows, np.minimum(then[:-k], start[k:]), then[:-k])
    ids, place, count = np.unique(rows.correlation[order], return_inverse=True, return_counts=True)
    overruns = (within >= _WITHIN) & (ids > 0)[place] & (count == 1)[place] & ~waits[order]
    result = rows.end.copy()
    result[order[overruns]] = then[overruns]
    return result, int(overruns.sum())
