"""Who launched what: from a device interval to the call that launched it, and to what encloses that call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dptrace.intervals import Int64
from dptrace.trace import Category, Trace

__all__ = ["depth", "enclosing", "launches"]


def launches(trace: Trace, events: Int64) -> Int64:
    """Give for each of the device *events* the index of the call that launched it, -1 where the file has none.

    Runtime and driver calls of every spelling count (cudaLaunchKernel, its ExC form, cuLaunchKernelEx, hip's, graph
    launches): what joins them is the correlation id. A graph launch has many kernels.
    """
    calls = np.flatnonzero((trace.category == Category.LAUNCH) & (trace.correlation > 0))
    if not len(calls):
        return np.full(len(events), -1, np.int64)
    # Stable: of two calls with one id (a runtime call and the driver call inside it) the outer, earlier one is first.
    calls = calls[np.argsort(trace.correlation[calls], kind="stable")]
    ids = trace.correlation[calls]
    wanted = trace.correlation[events]
    place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where((ids[place] == wanted) & (wanted > 0), calls[place], -1)


def depth(trace: Trace, events: Int64) -> Int64:
    """Tell how many of the *events* (indices, ascending) enclose each one on its own thread; 0 is an outermost one.

    ::

        thread 1   a─────────────┐  e──┐        depth a 0, b 1, c 2, d 1, e 0
                     b────┐  d─┐
                       c─┐
    """
    count = len(events)
    time = np.concatenate((trace.start_ns[events], trace.end_ns[events]))
    thread = np.tile(trace.thread[events], 2)
    opens = np.repeat(np.array([1, -1]), count)
    # At one instant what ends comes before what starts; the trace's order puts the encloser first among starts.
    # An event of no length must still open before it closes.
    empty = np.tile(trace.start_ns[events] == trace.end_ns[events], 2)
    rank = np.where(opens > 0, 1, np.where(empty, 2, 0))
    order = np.lexsort((rank, time, thread))
    running = np.cumsum(opens[order]) - opens[order]
    result = np.empty(2 * count, np.int64)
    result[order] = running
    return result[:count]


def enclosing(trace: Trace, mask: NDArray[np.bool_], thread: NDArray[np.int32], time: Int64) -> Int64:
    """Give for each (thread, time) the innermost event of *mask* that encloses it, as an index, or -1.

    An event encloses its start and not its end. Level by level of nesting, so that there is no loop over events.
    """
    events = np.flatnonzero(mask)
    found = np.full(len(time), -1, np.int64)
    if not len(events) or not len(time):
        return found
    levels = depth(trace, events)
    for level in range(int(levels.max()) + 1):
        hit = _latest(trace, events[levels == level], thread, time)
        found = np.where(hit >= 0, hit, found)
    return found


def _latest(trace: Trace, events: Int64, thread: NDArray[np.int32], time: Int64) -> Int64:
    """Give for each (thread, time) the last of the *events* to start there by then, if it is not over; else -1."""
    count = len(events)
    all_time = np.concatenate((trace.start_ns[events], time))
    all_thread = np.concatenate((trace.thread[events], thread))
    is_query = np.arange(len(all_time)) >= count
    order = np.lexsort((is_query, all_time, all_thread))
    seen = np.maximum.accumulate(np.where(is_query[order], -1, np.arange(len(order))))
    # `seen` is a place in the sorted sequence; of a query before any event of any thread it is -1.
    last = np.where(seen >= 0, order[np.maximum(seen, 0)], -1)
    candidate = np.empty(len(order), np.int64)
    candidate[order] = last
    candidate = candidate[count:]
    event = events[np.maximum(candidate, 0)]
    inside = (candidate >= 0) & (trace.thread[event] == thread) & (time < trace.end_ns[event])
    return np.where(inside, event, -1)
