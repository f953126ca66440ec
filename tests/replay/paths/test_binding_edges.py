"""Chains of what each task waited for longest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from dptrace.replay.graph.model import Graph
from dptrace.replay.paths.binding_edges import binding_edges, chain_to
from dptrace.replay.simulation.simulate import simulate
from tests.support.graphs import graphs


def longest_path(graph: Graph, task: int) -> int:
    """Return the largest of the ends of a task along each path to it: by enumeration of all."""
    edge = graph.edge

    def starts(here: int) -> list[int]:
        edges = [i for i in range(len(edge)) if edge.dst[i] == here]
        return [
            start + int(edge.from_end[i]) * int(graph.duration_ns[edge.src[i]]) + int(edge.lag_ns[i])
            for i in edges
            for start in starts(int(edge.src[i]))
        ] or [int(graph.start_ns[here])]

    return max(starts(task)) + int(graph.duration_ns[task])


@pytest.mark.heavy
@given(graphs(most=9))
def test_the_chain_is_the_longest_path(graph: Graph) -> None:
    """The lags and durations along the chain to the last task add up to the longest of all paths to it."""
    times = simulate(graph)
    last = int(times.end_ns.argmax())

    chain = chain_to(graph, binding_edges(graph, times), last, times)

    edges = chain.edge[:-1]
    work = np.where(graph.edge.from_end[edges], graph.duration_ns[graph.edge.src[edges]], 0).sum()
    length = graph.start_ns[chain.task[-1]] + work + graph.edge.lag_ns[edges].sum() + graph.duration_ns[last]
    assert longest_path(graph, last) == length


@pytest.mark.heavy
@given(graphs())
def test_a_chain_can_end_early(graph: Graph) -> None:
    """A chain that is cut at a time ends with the first task that starts by then."""
    times = simulate(graph)
    last, since = int(times.end_ns.argmax()), int(np.median(times.start_ns))

    chain = chain_to(graph, binding_edges(graph, times), last, times, since)

    assert (times.start_ns[chain.task[:-1]] > since).all()
    assert -1 == chain.edge[-1]
