"""The order of host events: on each thread, from thread to thread, and after waits that are not recorded."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, unique
from dptrace.replay.graph.model import EdgeKind, Edges, TaskKind
from dptrace.replay.graph.per_rank.device_order import US, DeviceOrder
from dptrace.replay.graph.per_rank.host_events import HostEvents
from dptrace.timeline.host_events import NEEDS_EVENTS, Pauses, Work, awaited
from dptrace.timeline.model import UNKNOWN

__all__ = ["HostTasks", "add_host_order"]

_HAND_OVER_NS = 100 * US
"""A longer pause, in which another thread finished a call, is a wait for that thread."""
_RESUME_NS = 20 * US
"""What a thread takes at least after a call and a wait that is not recorded."""


class HostTasks(msgspec.Struct, frozen=True):
    """Numbers of the tasks of each host event; the two differ for a blocking call."""

    begin: Int64
    finish: Int64


def add_host_order(
    edges: Edges,
    host: HostEvents,
    device: DeviceOrder,
    tasks: HostTasks,
    interval_tasks: Int64,
    names: tuple[str, ...],
) -> int:
    """Add the edges between host events, and those from device intervals that hidden waits end with.

    Args:
        names: those of the host events.

    Returns:
        The number of hidden waits.
    """
    start, end = host.start_ns, host.end_ns
    before, nested = _predecessors(host)
    pause = np.where(before >= 0, start - end[before], np.iinfo(np.int64).max)
    pause[nested] = 0
    on_cpu = bool((host.kind == TaskKind.COMPUTE).any())
    hidden = _hidden_waits(host, device, before, pause, names, on_cpu=on_cpu)
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
    # What the host does after the wait, it also does where it need not wait.
    after = start[event] - device.end_ns[hidden[event]]
    edges.add(tasks.finish[before[event]], tasks.begin[event], np.maximum(after, _RESUME_NS), EdgeKind.HOST)
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


def _hidden_waits(
    host: HostEvents, device: DeviceOrder, before: Int64, pause: Int64, names: tuple[str, ...], *, on_cpu: bool
) -> Int64:
    """Return for each host event the device interval that it waited for in the pause before it, or -1."""
    found = np.full(len(host), -1, np.int64)
    event = np.flatnonzero((before >= 0) & (pause > 0))
    chosen = np.flatnonzero(device.communication & (device.launched_by >= 0)) if on_cpu else np.arange(len(device))
    launch = np.append(host.start_ns, UNKNOWN)[device.launched_by[chosen]]
    work = Work(device.start_ns[chosen], device.end_ns[chosen], launch, device.lane[chosen])
    needs_events = np.array([NEEDS_EVENTS.match(name) is not None for name in names], np.bool_)
    place = host.name[before[event]].astype(np.int64) * len(names) + host.name[event]
    pauses = Pauses(host.end_ns[before[event]], host.start_ns[event], needs_events[host.name[event]], place)
    interval = awaited(pauses, work, on_cpu=on_cpu)
    found[event[interval >= 0]] = chosen[interval[interval >= 0]]
    return found
