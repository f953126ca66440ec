"""Figures of the same steps on all ranks, recorded and replayed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dptrace
from dptrace.replay import simulation
from dptrace.replay.graph.model import Graph
from dptrace.replay.simulation import (
    Schedule,
    SteadyState,
    choose,
    outcome,
    recorded_figures,
    simulate,
    simulated_figures,
    steady_state,
)
from tests.support.graphs import graphs, times_by_definition


def test_the_unchanged_graph_has_the_recorded_figures(run: dptrace.Run) -> None:
    """Each figure of each step on each rank comes out of the replay as it was recorded."""
    chosen = choose(run, run)

    assert np.array_equal(recorded_figures(run, chosen), simulated_figures(outcome(run.replay.model, chosen), chosen))


def test_selected_steps_are_found_in_the_whole_run(run: dptrace.Run) -> None:
    """One rank and two of three steps: their numbers are those in the whole run."""
    chosen = choose(run.select(ranks={1}, steps=(1, 2)), run)

    assert ((1,), ("ProfilerStep#1", "ProfilerStep#2")) == (chosen.timelines, chosen.steps)
    assert [[1, 2]] == [places.tolist() for places in chosen.places]


# The simulation of a graph.


@pytest.mark.heavy
@pytest.mark.parametrize("is_wide", [False, True], ids=["few ranks", "many ranks"])
@given(graphs())
def test_times_are_those_of_the_definition(is_wide: bool, graph: Graph) -> None:
    """Each start is the latest moment that an edge allows; a task without edges starts as recorded."""
    with pytest.MonkeyPatch.context() as patch:
        if is_wide:
            patch.setattr(simulation, "_MIN_RANKS", 0)
            patch.setattr(simulation, "_MIN_WIDTH", 0)
        times = simulate(graph)

    assert times_by_definition(graph) == (times.start_ns.tolist(), times.end_ns.tolist())


@pytest.mark.heavy
@given(graphs(), st.data())
def test_shorter_tasks_never_end_the_run_later(graph: Graph, data: st.DataObject) -> None:
    """Tasks that take less time, any of them, delay nothing."""
    shorter = np.array([data.draw(st.integers(0, int(ns))) for ns in graph.duration_ns], np.int64)
    schedule, lags = Schedule(graph), graph.edge.lag_ns

    assert (schedule.run(shorter, lags).end_ns <= schedule.run(graph.duration_ns, lags).end_ns).all()


@pytest.mark.heavy
@given(graphs())
def test_a_schedule_can_run_again(graph: Graph) -> None:
    """Running with other lags does not change what the next run returns."""
    schedule, as_it_was = Schedule(graph), (graph.duration_ns, graph.edge.lag_ns)
    before = schedule.run(*as_it_was)
    schedule.run(graph.duration_ns, graph.edge.lag_ns + 7)

    assert before.end_ns.tolist() == schedule.run(*as_it_was).end_ns.tolist()


# The length of a step in the long run, by host and by device.


def test_host_and_device_each_set_a_length(run: dptrace.Run) -> None:
    """What the slower of host and device needs alone is the least that a step takes in the long run."""
    device_ns = 400_000 + 1_000 + 200_000 + 2_000 + 100_000 + 2_000 + 50_000 + 1_000

    steady = steady_state(run.replay.model)

    assert SteadyState(host_ns=20_000 + 90_000, device_ns=device_ns) == steady
    assert device_ns == steady.step_ns
