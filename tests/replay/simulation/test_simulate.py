"""The simulation of a graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.replay.graph.model import Graph
from dptrace.replay.simulation.simulate import Schedule, simulate
from tests.support.graphs import graphs, times_by_definition


@pytest.mark.heavy
@given(graphs())
def test_times_are_those_of_the_definition(graph: Graph) -> None:
    """Each start is the latest moment that an edge allows; a task without edges starts as recorded."""
    times = simulate(graph)

    assert times_by_definition(graph) == (times.start_ns.tolist(), times.end_ns.tolist())


@pytest.mark.heavy
@given(graphs())
def test_no_task_starts_before_what_it_waits_for(graph: Graph) -> None:
    """No edge is violated."""
    times, edge = simulate(graph), graph.edge
    came = np.where(edge.from_end, times.end_ns[edge.src], times.start_ns[edge.src]) + edge.lag_ns

    assert (came <= times.start_ns[edge.dst]).all()


@pytest.mark.heavy
@given(graphs(), st.data())
def test_shorter_tasks_never_end_the_run_later(graph: Graph, data: st.DataObject) -> None:
    """Tasks that take less time, any of them, delay nothing."""
    shorter = np.array([data.draw(st.integers(0, int(ns))) for ns in graph.duration_ns], np.int64)
    schedule = Schedule(graph)

    assert (schedule.run(shorter).end_ns <= schedule.run().end_ns).all()


@pytest.mark.heavy
@given(graphs())
def test_a_schedule_can_run_again(graph: Graph) -> None:
    """Running with other lags does not change what the next run returns."""
    schedule = Schedule(graph)
    before = schedule.run()
    schedule.run(lag_ns=graph.edge.lag_ns + 7)

    assert before.end_ns.tolist() == schedule.run().end_ns.tolist()
