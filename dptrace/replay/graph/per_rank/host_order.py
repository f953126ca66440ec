"""The order of host events: on each thread, from thread to thread, and after waits that are not recorded."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.arrays import unique
from dptrace.core.intervals import Int64
from dptrace.replay.graph.model import EdgeKind, Edges, TaskKind
from dptrace.replay.graph.per_rank.device_order import US, DeviceOrder
from dptrace.replay.graph.per_rank.host_events import HostEvents

__all__ = ["HostTasks", "add_host_order"]

_HAND_OVER_NS = 100 * US
"""A longer pause, in which another thread finished a call, is a wait for that thread."""
_RESUME_NS = 20 * US
"""What a thread takes at least after a call and a wait that is not recorded."""


class _HiddenWait(msgspec.Struct, frozen=True):
    """How a pause looks in which the host was blocked in a call that is not recorded."""

    least_ns: int
    """Shortest pause."""
    after_ns: int
    """Longest time from the end of the device interval to the end of the pause."""
    share: float
    """Least share of the pause that the interval covers."""


_ON_GPU = _HiddenWait(500 * US, 60 * US, 0.8)
"""Such as cudaEventSynchronize of the allocator's retry, in older traces."""
_ON_CPU = _HiddenWait(50 * US, 300 * US, 0.3)
"""``Work.wait`` of gloo: its thread has to get a core first."""


_PER_PAUSE = 1_000
"""Share of a pause, as its inverse, up to which it may end later after the device interval."""


class HostTasks(msgspec.Struct, frozen=True):
    """Numbers of the tasks of each host event; the two differ for a blocking call."""

    begin: Int64
    finish: Int64


def add_host_order(edges: Edges, host: HostEvents, device: DeviceOrder, tasks: HostTasks, interval_tasks: Int64) -> int:
    """Add the edges between host events, and those from device intervals that hidden waits end with.

    Returns:
        The number of hidden waits.
    """
    start, end = host.start_ns, host.end_ns
    before, nested = _predecessors(host)
    pause = np.where(before >= 0, start - end[before], np.iinfo(np.int64).max)
    pause[nested] = 0
    hidden = _hidden_waits(host, device, before, pause, _ON_CPU if (host.kind == TaskKind.COMPUTE).any() else _ON_GPU)
    waits = hidden >= 0
    other = _handed_over(host, before, np.flatnonzero((pause > _HAND_OVER_NS) & ~waits))
    handed = other >= 0
    plain = (before >= 0) & ~waits & ~handed & ~nested

    event = np.flatnonzero(plain)
    edges.add(tasks.finish[before[event]], tasks.begin[event], np.maximum(pause[event], 0), EdgeKind.HOST)
    event = np.flatnonzero(nested)
    since = start[event] - start[before[event]]
    edges.add(tasks.begin[before[event]], tasks.begin[event], since, EdgeKind.HOST, from_end=False)
    event = np.flatnonzero(handed)
    edges.add(tasks.finish[other[event]], tasks.begin[event], start[event] - end[other[event]], EdgeKind.THREAD)
    event = np.flatnonzero(waits)
    edges.add(tasks.finish[before[event]], tasks.begin[event], _RESUME_NS, EdgeKind.HOST)
    after = start[event] - device.end_ns[hidden[event]]
    edges.add(interval_tasks[hidden[event]], tasks.begin[event], after, EdgeKind.HIDDEN)
    return len(event)


def _predecessors(host: HostEvents) -> tuple[Int64, NDArray[np.bool_]]:
    """Return what each event follows on its thread, or -1, and whether that event is around it.

    The predecessor is the event that ended last. Within an event that still runs, it is the one before, or if that
    still runs too, it encloses this one::

        ├── a ─────────────┤  ├ d ┤       b is nested in a · c follows b · d follows a, which ended after c
          ├ b ┤  ├ c ┤
    """
    count = len(host)
    order = np.argsort(host.thread, kind="stable")
    first = np.ones(count, np.bool_)
    first[1:] = host.thread[order[1:]] != host.thread[order[:-1]]
    # The latest end so far on the thread, and who has it: ends by rank, one thread above the other.
    rank = np.empty(count, np.int64)
    rank[np.argsort(host.end_ns[order], kind="stable")] = np.arange(count)
    reach = np.maximum.accumulate(rank + np.cumsum(first) * count)
    holder = order[np.argsort(rank)][reach % count] if count else order
    last, latest = np.append(-1, order[:-1]), np.append(-1, holder[:-1])
    started = host.start_ns[order]
    inside = host.end_ns[latest] > started
    # A mark starts with what it is around.
    before = np.where(inside, last, latest)
    within = inside & (host.end_ns[last] > started)
    before[first], within[first] = -1, False
    result, nested = np.empty(count, np.int64), np.empty(count, np.bool_)
    result[order], nested[order] = before, within
    return result, nested


def _handed_over(host: HostEvents, before: Int64, event: Int64) -> Int64:
    """Return for each host event the one of another thread that it went on after, or -1; only for *event*.

    It is the last to end among the last events of the other threads, if it ended after the predecessor.
    """
    best = np.full(len(event), -1, np.int64)
    ended = np.where(before[event] >= 0, host.end_ns[before[event]], np.iinfo(np.int64).min)
    for thread in unique(host.thread).tolist():
        own = np.flatnonzero(host.thread == thread)
        place = np.searchsorted(own, event) - 1
        last = own[place]
        end = host.end_ns[last]
        better = (place >= 0) & (host.thread[event] != thread) & (end <= host.start_ns[event]) & (end > ended)
        best, ended = np.where(better, last, best), np.where(better, end, ended)
    result = np.full(len(host), -1, np.int64)
    result[event] = best
    return result


def _hidden_waits(host: HostEvents, device: DeviceOrder, before: Int64, pause: Int64, like: _HiddenWait) -> Int64:
    """Return for each host event the device interval that it waited for in the pause before it, or -1."""
    found = np.full(len(host), -1, np.int64)
    launched = np.flatnonzero(device.launched_by >= 0)
    event = np.flatnonzero((before >= 0) & (pause > like.least_ns))
    if not len(event) or not len(launched):
        return found
    by_end = launched[np.argsort(device.end_ns[launched], kind="stable")]
    ends = device.end_ns[by_end]
    until = host.start_ns[event]
    # Against a wait of a second, a tenth of a millisecond until the thread runs again is nothing.
    low = np.searchsorted(ends, until - np.maximum(like.after_ns, pause[event] // _PER_PAUSE))
    count = np.searchsorted(ends, until, side="right") - low
    # Each pause with each interval that ends just before it does: low 3, count 2 → 3, 4.
    which = np.repeat(np.arange(len(event)), count)
    interval = by_end[np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + low[which]]
    since = host.end_ns[before[event[which]]]
    covered = device.end_ns[interval] - np.maximum(since, device.start_ns[interval])
    fits = (covered > like.share * pause[event[which]]) & (device.launched_by[interval] < event[which])
    which, interval, covered = which[fits], interval[fits], covered[fits]
    # The one that covers most comes last, and stays.
    order = np.argsort(covered, kind="stable")
    found[event[which[order]]] = interval[order]
    return found
