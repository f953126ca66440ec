"""Which edge each task waited for longest, and the chain of such edges that ends at a task: its critical path."""

from __future__ import annotations

import msgspec
import numpy as np

from dptrace.core.intervals import Int64
from dptrace.replay.graph.model import Graph
from dptrace.replay.simulation.simulate import Times

__all__ = ["Chain", "binding_edges", "chain_to"]


class Chain(msgspec.Struct, frozen=True):
    """A chain of tasks from the last to the first, each of which started as its edge from the next one allowed."""

    task: Int64
    edge: Int64
    """The edge that each task waited for, or -1 for the first task of the chain."""

    def __len__(self) -> int:
        return len(self.task)


def binding_edges(graph: Graph, times: Times) -> Int64:
    """Return for each task the edge that set its start, or -1 for a task without edges."""
    edge = graph.edge
    came = np.where(edge.from_end, times.end_ns[edge.src], times.start_ns[edge.src]) + edge.lag_ns
    sets = np.flatnonzero(came == times.start_ns[edge.dst])
    binding = np.full(len(graph), -1, np.int64)
    # Of several, the first counts: edges are sorted by destination, so the last to be written is the first of it.
    binding[edge.dst[sets[::-1]]] = sets[::-1]
    return binding


def chain_to(graph: Graph, binding: Int64, task: int, times: Times, since_ns: int | None = None) -> Chain:
    """Follow the binding edges back from a task, to one that starts at *since_ns* or before, or has no edge."""
    source = graph.edge.src
    tasks, edges = [task], list[int]()
    while True:
        here = tasks[-1]
        edge = int(binding[here])
        edges.append(edge)
        if edge < 0 or (since_ns is not None and times.start_ns[here] <= since_ns):
            edges[-1] = -1
            return Chain(np.array(tasks, np.int64), np.array(edges, np.int64))
        tasks.append(int(source[edge]))
