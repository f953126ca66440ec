"""Run the tasks of a graph: each starts as soon as all that it waits for has happened."""

from __future__ import annotations

import msgspec
import numpy as np

from dptrace.core.intervals import Int64
from dptrace.replay.graph.model import Graph

__all__ = ["NEVER", "Schedule", "Times", "simulate"]

NEVER = -(1 << 60)
"""Lag of an edge that does not hold: its source has always happened."""


class Times(msgspec.Struct, frozen=True):
    """When each task of a graph starts and ends, in ns on the shared clock."""

    start_ns: Int64
    end_ns: Int64


class Schedule:
    """A graph prepared for many simulations.

    ::

        join ──► a ──► b ──► c        each of a, b, c waits for one task: it starts a known time after the join
          └────► d ──► join           only joins, which wait for several tasks, are visited one after the other
    """

    def __init__(self, graph: Graph) -> None:
        order, edge = graph.order, graph.edge
        self.graph = graph
        counts = np.diff(graph.first)
        self._follower = np.flatnonzero(counts == 1)
        self._single = graph.first[self._follower]
        self._parent = np.arange(len(graph))
        self._parent[self._follower] = edge.src[self._single]
        root = self._parent
        while not np.array_equal(further := root[root], root):
            root = further
        self._root = root
        joins = order[counts[order] > 1]
        size = counts[joins]
        # Edges of the joins, in the order of these.
        self._edges = np.repeat(graph.first[joins] - np.cumsum(size) + size, size) + np.arange(size.sum())
        self._sources = root[edge.src[self._edges]].tolist()
        self._joins, self._sizes = joins.tolist(), size.tolist()

    def run(self, duration_ns: Int64 | None = None, lag_ns: Int64 | None = None) -> Times:
        """Simulate with other durations or lags; those of the graph by default."""
        graph, edge = self.graph, self.graph.edge
        duration = graph.duration_ns if duration_ns is None else duration_ns
        lag = graph.edge.lag_ns if lag_ns is None else lag_ns
        # From the start of an edge's source to what waits for it.
        along = lag + np.where(edge.from_end, duration[edge.src], 0)
        after = self._after_roots(along)
        since = (along + after[edge.src])[self._edges].tolist()
        start, sources = graph.start_ns.tolist(), self._sources
        place = 0
        # A loop, since most joins wait for the one before them: level by level, numpy would have as many calls.
        for join, size in zip(self._joins, self._sizes, strict=True):
            first, second = start[sources[place]] + since[place], start[sources[place + 1]] + since[place + 1]
            latest = first if first > second else second
            for further in range(place + 2, place + size):
                latest = max(latest, start[sources[further]] + since[further])
            start[join] = latest
            place += size
        begun = np.array(start, np.int64)[self._root] + after
        return Times(begun, begun + duration)

    def _after_roots(self, along: Int64) -> Int64:
        """Return how long after its root each task starts: sums along chains, of which each pass doubles the length."""
        after = np.zeros(len(self._parent), np.int64)
        after[self._follower] = along[self._single]
        parent = self._parent
        while not np.array_equal(parent, self._root):
            after = np.maximum(after + after[parent], NEVER)
            parent = parent[parent]
        return after


def simulate(graph: Graph) -> Times:
    """Simulate a graph once, as it is."""
    return Schedule(graph).run()
