"""No straggler: between two collectives, no rank spends longer on its own work than the median rank."""

from __future__ import annotations

import msgspec
import numpy as np

from dptrace.core.arrays import median
from dptrace.core.intervals import Int64
from dptrace.errors import DptraceError
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.host_pieces import cut_longest, host_pieces
from dptrace.replay.graph.model import TaskKind
from dptrace.replay.graph.per_rank.process import Process
from dptrace.replay.simulation.changes import with_times

__all__ = ["NoStraggler"]

_LEAST_NS = 2_000_000
"""A rank that takes this much longer than the median is a straggler."""


class NoStraggler(msgspec.Struct, frozen=True):
    """No rank takes longer than the median one between two collectives that all ranks share."""

    collectives: bool = True
    host: bool = True

    def describe(self) -> str:
        return "no straggler"

    def apply(self, model: Model) -> Model:
        if len(model.processes) < 2:
            raise DptraceError(
                f"{model.run.path}: --no-straggler compares ranks, and the run has one. Add the other ranks' traces."
            )
        durations, lags = model.graph.duration_ns.copy(), model.graph.edge.lag_ns.copy()
        level = _level_points(model)
        host = [_host_items(model, process, points) for process, points in zip(model.processes, level, strict=True)]
        _level(host, len(level[0]) + 1, durations, lags)
        device = [_device_items(model, process, points) for process, points in zip(model.processes, level, strict=True)]
        _level(device, len(level[0]) + 1, durations, lags)
        return with_times(model, durations, lags)


class _Items(msgspec.Struct, frozen=True):
    """Pieces of a process's own work; one entry per piece in each column."""

    length_ns: Int64
    segment: Int64
    """Number of points before it."""
    index: Int64
    """Of its task, or -1 - that of its edge."""


def _level_points(model: Model) -> list[Int64]:
    """Return for each process the launches of the collectives of all processes: the same number for each.

    Without any, they are the starts of the steps.
    """
    graph, transfers = model.graph, model.transfers
    owner = graph.process[transfers.arrival]
    launched = np.full((len(transfers), len(model.processes)), np.iinfo(np.int64).max)
    for index, process in enumerate(model.processes):
        own = np.flatnonzero(owner == index)
        by = process.device.launched_by[transfers.arrival[own] - process.interval_tasks[0]] if len(own) else own
        known = by >= 0
        launched[transfers.instance[own[known]], index] = process.host.start_ns[by[known]]
    shared = launched[(launched < np.iinfo(np.int64).max).all(axis=1)]
    if not len(shared):
        count = min(len(process.host.marks) for process in model.processes)
        return [process.host.start_ns[process.host.marks[:count]] for process in model.processes]
    shared = shared[np.argsort(shared.min(axis=1), kind="stable")]
    # Threads may launch collectives in another order on a rank: a point never lies before the one before it.
    shared = np.maximum.accumulate(shared, axis=0)
    return [shared[:, index] for index in range(shared.shape[1])]


def _host_items(model: Model, process: Process, points: Int64) -> _Items:
    """Return the calls, pauses and hand-overs of a process; waits are none of its work."""
    pieces = host_pieces(model, process)
    return _Items(pieces.length_ns, np.searchsorted(points, pieces.at_ns), pieces.index)


def _device_items(model: Model, process: Process, points: Int64) -> _Items:
    """Return the kernels of a process, by their launch."""
    graph = model.graph
    task = process.interval_tasks[graph.of(TaskKind.COMPUTE)[process.interval_tasks]]
    by = process.device.launched_by[task - process.interval_tasks[:1].sum()]
    task, by = task[by >= 0], by[by >= 0]
    return _Items(graph.duration_ns[task], np.searchsorted(points, process.host.start_ns[by]), task)


def _level(ranks: list[_Items], segments: int, durations: Int64, lags: Int64) -> None:
    """Cut what exceeds the median rank's work in each segment from the longest pieces, in place."""
    total = np.zeros((len(ranks), segments), np.int64)
    for row, items in zip(total, ranks, strict=True):
        np.add.at(row, items.segment, items.length_ns)
    extra = total - median(total, axis=0).astype(np.int64)
    for rank, segment in np.argwhere(extra > _LEAST_NS).tolist():
        items = ranks[rank]
        own = np.flatnonzero(items.segment == segment)
        cut = cut_longest(items.length_ns[own], int(extra[rank, segment]))
        index = items.index[own]
        durations[index[index >= 0]] -= cut[index >= 0]
        lags[-1 - index[index < 0]] -= cut[index < 0]
