"""Waits that only times suggest: the last resort for tasks that start later than all that is known allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dptrace.core.intervals import Int64
from dptrace.replay.graph.model import EdgeKind, Edges, Graph
from dptrace.replay.graph.per_rank.device_order import US
from dptrace.replay.graph.per_rank.process import Process

__all__ = ["add_inferred", "residuals"]

_LEAST_NS = 20 * US
_BEFORE_NS = 15 * US
"""A wait ends this soon after what was waited for."""
_AFTER_NS = 2 * US


def residuals(graph: Graph) -> Int64:
    """Return how much later than its edges allow each task was recorded to start, in ns; 0 for one without edges.

    What is left over is unexplained; a negative value contradicts an edge.
    """
    edge = graph.edge
    came = np.where(edge.from_end, graph.end_ns[edge.src], graph.start_ns[edge.src]) + edge.lag_ns
    late = np.zeros(len(graph), np.int64)
    waiting = np.flatnonzero(np.diff(graph.first))
    if len(waiting):
        late[waiting] = graph.start_ns[waiting] - np.maximum.reduceat(came, graph.first[waiting])
    return late


def add_inferred(edges: Edges, graph: Graph, processes: Sequence[Process]) -> None:
    """Add edges for tasks on devices that start 20 µs or more after all that is known allows.

    Where an interval of another stream ended just before, the task waited for it. Where a kernel of another stream ran
    throughout, it left no multiprocessor free.
    """
    late = residuals(graph)
    for process in processes:
        if process.events.on_cpu:
            continue
        device = process.device
        unexplained = late[process.interval_tasks]
        interval = np.flatnonzero(unexplained >= _LEAST_NS)
        source = _ended_just_before(process, interval)
        found = source >= 0
        lag = np.minimum(_AFTER_NS, device.start_ns[interval] - device.end_ns[source])[found]
        tasks = process.interval_tasks
        edges.add(tasks[source[found]], tasks[interval[found]], lag, EdgeKind.TIMED)
        interval = interval[~found]
        source = _ran_throughout(process, interval, unexplained[interval])
        found = source >= 0
        lag = (device.start_ns[interval] - device.end_ns[source])[found]
        edges.add(tasks[source[found]], tasks[interval[found]], lag, EdgeKind.BUSY)


def _ended_just_before(process: Process, interval: Int64) -> Int64:
    """Return for each interval the last to end just before it on another stream, launched before it; or -1."""
    device = process.device
    by_end = np.argsort(device.end_ns, kind="stable")
    ends = device.end_ns[by_end]
    low = np.searchsorted(ends, device.start_ns[interval] - _BEFORE_NS)
    count = np.searchsorted(ends, device.start_ns[interval], side="right") - low
    which = np.repeat(np.arange(len(interval)), count)
    other = by_end[np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + low[which]]
    own = interval[which]
    fits = (device.lane[other] != device.lane[own]) & (device.start_ns[other] < device.start_ns[own])
    fits &= (device.launched_by[own] < 0) | (device.launched_by[other] <= device.launched_by[own])
    found = np.full(len(interval), -1, np.int64)
    found[which[fits]] = other[fits]  # ends ascend: the last one stays
    return found


def _ran_throughout(process: Process, interval: Int64, late: Int64) -> Int64:
    """Return for each interval the longest kernel of another stream that ran while it could have started; or -1."""
    device = process.device
    kernel = ~device.communication & ~process.events.memory
    found, longest = np.full(len(interval), -1, np.int64), np.zeros(len(interval), np.int64)
    if not len(interval):
        return found
    since, start = device.start_ns[interval] - late + _LEAST_NS, device.start_ns[interval]
    for lane in range(device.lanes):
        own = np.flatnonzero((device.lane == lane) & kernel)
        place = np.searchsorted(device.start_ns[own], start) - 1
        other = np.where(place >= 0, own[place] if len(own) else -1, -1)
        length = device.end_ns[other] - device.start_ns[other]
        fits = (other >= 0) & (device.lane[interval] != lane) & (device.start_ns[other] <= since)
        better = fits & (device.end_ns[other] > start) & (length > longest)
        found, longest = np.where(better, other, found), np.where(better, length, longest)
    return found
