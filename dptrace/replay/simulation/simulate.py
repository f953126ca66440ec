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
    """A graph prepared for many simulations: tasks in order, and where the times that each waits for are found."""

    def __init__(self, graph: Graph) -> None:
        order, edge = graph.order, graph.edge
        self.graph = graph
        counts = np.diff(graph.first)[order]
        # Edges in the order of their tasks.
        places = np.repeat(graph.first[:-1][order] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        self._places = places
        # Times of all tasks lie in one list: start of task i at 2i, its end at 2i + 1.
        self._sources = (2 * edge.src + edge.from_end)[places].tolist()
        self._order, self._counts = order.tolist(), counts.tolist()

    def run(self, duration_ns: Int64 | None = None, lag_ns: Int64 | None = None) -> Times:
        """Simulate with other durations or lags; those of the graph by default."""
        graph = self.graph
        duration = (graph.duration_ns if duration_ns is None else duration_ns).tolist()
        lag = (graph.edge.lag_ns if lag_ns is None else lag_ns)[self._places].tolist()
        recorded, sources = graph.start_ns.tolist(), self._sources
        times = [0] * (2 * len(graph))
        edge = 0
        # A loop, since most tasks wait for the one before them: level by level, numpy would have as many calls.
        for task, count in zip(self._order, self._counts, strict=True):
            if count == 1:
                start = times[sources[edge]] + lag[edge]
                edge += 1
            elif count == 2:
                start = times[sources[edge]] + lag[edge]
                other = times[sources[edge + 1]] + lag[edge + 1]
                if other > start:
                    start = other
                edge += 2
            elif count:
                start = max([times[sources[i]] + lag[i] for i in range(edge, edge + count)])
                edge += count
            else:
                start = recorded[task]
            times[2 * task] = start
            times[2 * task + 1] = start + duration[task]
        table = np.array(times, np.int64).reshape(-1, 2)
        return Times(table[:, 0], table[:, 1])


def simulate(graph: Graph) -> Times:
    """Simulate a graph once, as it is."""
    return Schedule(graph).run()
