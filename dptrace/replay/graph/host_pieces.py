"""The host time of a process in pieces: its calls, and the pauses between them, without waits."""

from __future__ import annotations

import msgspec
import numpy as np

from dptrace.core.intervals import Int64
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.graph.per_rank.process import Process

__all__ = ["KEPT_NS", "HostPieces", "cut_longest", "cut_pieces", "host_pieces"]

KEPT_NS = 20_000
"""What remains of a call or a pause that is cut."""


class HostPieces(msgspec.Struct, frozen=True):
    """Calls, pauses and hand-overs between threads; one entry per piece in each column."""

    start_ns: Int64
    """Recorded start and end, on the shared clock."""
    end_ns: Int64
    length_ns: Int64
    """What it takes in the model."""
    index: Int64
    """Of its task, or -1 - that of its edge."""
    twin: Int64
    """Of the edge that has the same lag, after a wait instead of after the event before; or -1."""

    @property
    def at_ns(self) -> Int64:
        """When each call starts, and the call after each pause."""
        return np.where(self.index >= 0, self.start_ns, self.end_ns)

    def cut(self, ns: Int64, durations: Int64, lags: Int64) -> None:
        """Take time from the pieces, in place; durations and lags are those of the model's tasks and edges."""
        own = self.index >= 0
        durations[self.index[own]] -= ns[own]
        lags[-1 - self.index[~own]] -= ns[~own]
        both = self.twin >= 0
        lags[self.twin[both]] -= ns[both]


def host_pieces(model: Model, process: Process) -> HostPieces:
    """Return the pieces of a process's host time; on a CPU, operators that compute are among its calls."""
    graph = model.graph
    low, high = process.first_task, process.first_task + len(process)
    kinds = (TaskKind.CALL, TaskKind.COMPUTE) if process.events.on_cpu else (TaskKind.CALL,)
    task = low + np.flatnonzero(graph.of(*kinds)[low:high])
    first, last = graph.first[low], graph.first[high]
    edge = first + np.flatnonzero(graph.edge.of(EdgeKind.HOST, EdgeKind.THREAD)[first:last])
    # An event within another starts with it, whatever its lag.
    edge = edge[graph.edge.from_end[edge]]
    waits = first + np.flatnonzero(graph.edge.of(EdgeKind.HIDDEN)[first:last])
    twin = np.full(len(graph), -1, np.int64)
    twin[graph.edge.dst[waits]] = waits
    twin = twin[graph.edge.dst[edge]]
    before, after = graph.end_ns[graph.edge.src[edge]], graph.start_ns[graph.edge.dst[edge]]
    before = np.where(twin >= 0, graph.end_ns[graph.edge.src[twin]], before)
    return HostPieces(
        np.concatenate((graph.start_ns[task], np.minimum(before, after))),
        np.concatenate((graph.end_ns[task], after)),
        np.maximum(np.concatenate((graph.duration_ns[task], graph.edge.lag_ns[edge])), 0),
        np.concatenate((task, -1 - edge)),
        np.concatenate((np.full(len(task), -1), twin)),
    )


def cut_pieces(length_ns: Int64, ns: int) -> Int64:
    """Return what to take from each piece: of the longest first, and of all where many short ones took the time."""
    cut = cut_longest(length_ns, ns)
    left = length_ns - cut
    share = min(1.0, (ns - int(cut.sum())) / max(1, int(left.sum())))
    taken: Int64 = cut + np.floor(left * share).astype(np.int64)
    return taken


def cut_longest(length_ns: Int64, ns: int) -> Int64:
    """Return what to take from each piece so that *ns* go in all, the longest first.

    Pieces of 5, 1 and 3 ms, 6 ms to go → 5, 0 and 1 ms, except for the 20 µs that remain of each.
    """
    order = np.argsort(-length_ns, kind="stable")
    room = np.maximum(length_ns[order] - KEPT_NS, 0)
    cut = np.empty_like(length_ns)
    cut[order] = np.clip(ns - (np.cumsum(room) - room), 0, room)
    return cut
