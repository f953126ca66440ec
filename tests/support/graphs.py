"""Random dependency graphs for hypothesis, and their times by definition."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import strategies as st

from dptrace.core.intervals import Int64
from dptrace.replay.graph.model import Edge, EdgeKind, Graph, TaskKind, order_tasks


def graph_of(start: Int64, duration: Int64, edge: Edge) -> Graph:
    """Build a graph of compute tasks of one process."""
    ordered, first, order = order_tasks(edge, start)
    count = len(start)
    zero = np.zeros(count, np.int32)
    kind = np.full(count, TaskKind.COMPUTE, np.uint8)
    return Graph(start, duration, start + duration, kind, zero, zero, zero, ("task",), ordered, first, order)


@st.composite
def graphs(draw: st.DrawFn, most: int = 12, least_lag: int = -20) -> Graph:
    """Draw a graph whose edges point from tasks to later ones, numbered at random."""
    count = draw(st.integers(1, most))
    number = np.array(draw(st.permutations(range(count))), np.int64)
    pairs = [(a, b) for b in range(count) for a in range(b)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=2 * count, unique=True)) if pairs else []
    lags = draw(st.lists(st.integers(least_lag, 50), min_size=len(chosen), max_size=len(chosen)))
    ends = draw(st.lists(st.booleans(), min_size=len(chosen), max_size=len(chosen)))
    places = np.array(chosen, np.int64).reshape(-1, 2)
    edge = Edge(
        number[places[:, 0]],
        number[places[:, 1]],
        np.array(lags, np.int64),
        np.array(ends, np.bool_),
        np.full(len(chosen), EdgeKind.STREAM, np.uint8),
    )
    times = st.lists(st.integers(0, 100), min_size=count, max_size=count)
    return graph_of(np.array(draw(times), np.int64), np.array(draw(times), np.int64), edge)


def times_by_definition(graph: Graph) -> tuple[list[int], list[int]]:
    """Return starts and ends by the formula, task by task."""

    @cache
    def start(task: int) -> int:
        edges = [i for i in range(len(graph.edge)) if graph.edge.dst[i] == task]
        came = [
            (end(int(graph.edge.src[i])) if graph.edge.from_end[i] else start(int(graph.edge.src[i])))
            + int(graph.edge.lag_ns[i])
            for i in edges
        ]
        return max(came) if came else int(graph.start_ns[task])

    def end(task: int) -> int:
        return start(task) + int(graph.duration_ns[task])

    return [start(i) for i in range(len(graph))], [end(i) for i in range(len(graph))]
