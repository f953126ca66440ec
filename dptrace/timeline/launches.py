"""From a device interval to the call that launched it, and to the events that enclose that call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.readers.trace import Category, Trace

__all__ = ["holding", "last_above", "last_enclosing", "launches", "outermost"]


def launches(trace: Trace, events: Int64) -> Int64:
    """Return for each of the device *events* the index of the call that launched it, -1 where the file has none.

    Runtime and driver calls of any name count (cudaLaunchKernel, its ExC form, cuLaunchKernelEx, HIP's, graph
    launches); the correlation id links them. A graph launch has many kernels. If several calls share an id (ids wrap
    at 2^32, and each process has its own), the last to start before the event counts.
    """
    calls = np.flatnonzero((trace.category == Category.LAUNCH) & (trace.correlation > 0))
    if not len(calls):
        return np.full(len(events), -1, np.int64)
    calls = _outer(trace, calls[np.argsort(trace.correlation[calls], kind="stable")])
    ids = trace.correlation[calls]
    wanted = trace.correlation[events]
    place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    if (ids[1:] == ids[:-1]).any():
        # The first call with the id counts even if, by the clocks, it started after the event.
        place = np.maximum(place, _last_before(ids, trace.start_ns[calls], wanted, trace.start_ns[events]))
    return np.where((ids[place] == wanted) & (wanted > 0), calls[place], -1)


def _outer(trace: Trace, calls: Int64) -> Int64:
    """Drop calls inside another with the same id: the driver's inside the runtime's. *calls* are sorted by id."""
    inner = trace.correlation[calls[1:]] == trace.correlation[calls[:-1]]
    if not inner.any():
        return calls
    inner &= trace.thread[calls[1:]] == trace.thread[calls[:-1]]
    inner &= trace.end_ns[calls[1:]] <= trace.end_ns[calls[:-1]]
    outer: Int64 = calls[~np.append(False, inner)]
    return outer


def _last_before(ids: Int64, start: Int64, wanted: Int64, time: Int64) -> Int64:
    """Return the position of the last call, sorted by id and start, not beyond each (id, time); -1 if there is none."""
    return _last_place(np.append(ids, wanted), np.append(start, time), len(ids))


def _last_place(group: NDArray[np.int64], time: Int64, count: int) -> Int64:
    """Return for each entry from *count* on the last of the first *count* (sorted) that is not beyond it."""
    order = np.lexsort((np.arange(len(time)) >= count, time, group))
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(order < count) - 1
    return place[count:]


def outermost(trace: Trace, events: Int64) -> Int64:
    """Keep the *events* (indices, ascending) that no earlier event on their thread contains."""
    order = events[np.argsort(trace.thread[events], kind="stable")]
    if not len(order):
        return order
    # Ends by rank, and threads one after the other, so that the reach of one never covers another.
    _, thread = np.unique(trace.thread[order], return_inverse=True)
    _, end = np.unique(trace.end_ns[order], return_inverse=True)
    reach = np.maximum.accumulate(thread * len(order) + end)
    return np.sort(order[np.append(True, reach[1:] > reach[:-1])])


def holding(trace: Trace, events: Int64, inner: Int64, ended: Int64) -> NDArray[np.bool_]:
    """Return for each of *events* whether a request of *inner* starts within it and its work ends within it.

    Args:
        events: indices.
        inner: indices of events that request work; they count for events on their own thread.
        ended: end of each request's work in ns.
    """
    if not len(inner) or not len(events):
        return np.zeros(len(events), np.bool_)
    _, thread = np.unique(np.append(trace.thread[inner], trace.thread[events]), return_inverse=True)
    times = np.concatenate((trace.start_ns[inner], trace.start_ns[events], trace.end_ns[events]))
    known, rank = np.unique(times, return_inverse=True)
    place = np.concatenate((thread, thread[len(inner) :])) * len(known) + rank
    order = np.argsort(place[: len(inner)], kind="stable")
    first, last = np.searchsorted(place[order], place[len(inner) :]).reshape(2, -1)
    # The earliest end of those within; one entry beyond all for reduceat, which returns it where there is none.
    ends = np.append(ended[order], np.iinfo(np.int64).max)
    earliest = np.minimum.reduceat(ends, np.stack((first, np.maximum(first, last)), axis=1).reshape(-1))[::2]
    held: NDArray[np.bool_] = (last > first) & (earliest <= trace.end_ns[events])
    return held


def last_enclosing(trace: Trace, mask: NDArray[np.bool_], thread: NDArray[np.int32], time: Int64) -> Int64:
    """Return for each (thread, time) the index of the last event of *mask* to start that encloses it, or -1.

    An event encloses its start and its end: traces rounded to microseconds let a call begin when its event ends. Where
    one event ends as the next starts, the next counts. Events may overlap partly (pytorch#174555); where they nest,
    the last to start is the innermost. The cost does not depend on the depth: see :func:`last_above`.
    """
    events = np.flatnonzero(mask)
    if not len(events) or not len(time):
        return np.full(len(time), -1, np.int64)
    events = events[np.argsort(trace.thread[events], kind="stable")]
    group = np.append(trace.thread[events], thread).astype(np.int64)
    place = _last_place(group, np.append(trace.start_ns[events], time), len(events))
    candidate = events[last_above(trace.end_ns[events], place, time - 1)]
    encloses = (
        (place >= 0)
        & (trace.thread[candidate] == thread)
        & (trace.start_ns[candidate] <= time)
        & (time <= trace.end_ns[candidate])
    )
    return np.where(encloses, candidate, -1)


def last_above(values: Int64, place: Int64, limit: Int64) -> Int64:
    """Return for each query the last index up to *place* whose value is above *limit*; any index if there is none.

    A tree of maxima: up from *place* to a block that holds such a value, then down to the last one in it.
    """
    size = 1 << (len(values) - 1).bit_length()
    levels = [np.append(values, np.full(size - len(values), np.iinfo(np.int64).min))]
    while len(levels[-1]) > 1:
        levels.append(np.maximum(levels[-1][::2], levels[-1][1::2]))
    block, height = np.maximum(place, 0), np.zeros(len(place), np.int64)
    searching = np.arange(len(place))
    for maxima in levels:
        searching = searching[maxima[block[searching]] <= limit[searching]]
        # The parent of a right block adds what is left of it; left of a left block is the parent's neighbor.
        block[searching] = (block[searching] - 1) >> 1
        height[searching] += 1
        searching = searching[block[searching] >= 0]
    for level in range(len(levels) - 2, -1, -1):
        below = np.flatnonzero((height > level) & (block >= 0))
        right = 2 * block[below] + 1
        block[below] = np.where(levels[level][right] > limit[below], right, right - 1)
    return np.maximum(block, 0)
