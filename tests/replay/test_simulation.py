"""Figures of the same steps on all ranks, recorded and replayed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

import dptrace
from dptrace.core.intervals import Int64
from dptrace.replay.graph import schedule
from dptrace.replay.graph.model import NEVER, NO_PROCESS, Graph
from dptrace.replay.graph.schedule import Schedule, Simulation, simulate
from dptrace.replay.simulation import (
    WALL,
    SteadyState,
    choose,
    outcome,
    recorded_figures,
    simulated_figures,
    simulated_walls,
    steady_state,
)
from tests.support.graphs import graphs, mesh, times_by_definition


def test_the_unchanged_graph_has_the_recorded_figures(run: dptrace.Run) -> None:
    """Each figure of each step on each rank comes out of the replay as it was recorded."""
    chosen = choose(run, run)

    replayed = outcome(run.replay.model, chosen)
    figures = recorded_figures(run, chosen)

    assert np.array_equal(figures, simulated_figures(replayed, chosen))
    assert np.array_equal(figures[:, :, WALL], simulated_walls(replayed, chosen))
    assert np.array_equal(replayed.by_end[:, :, WALL], replayed.length_ns)


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
            patch.setattr(schedule, "_MIN_RANKS", 0)
            patch.setattr(schedule, "_MIN_WIDTH", 0)
        times = simulate(graph)

    assert times_by_definition(graph) == (times.start_ns.tolist(), times.end_ns.tolist())


@pytest.mark.heavy
@given(graphs(), st.data())
def test_shorter_tasks_never_end_the_run_later(graph: Graph, data: st.DataObject) -> None:
    """Tasks that take less time, any of them, delay nothing."""
    shorter = np.array([data.draw(st.integers(0, int(ns))) for ns in graph.duration_ns], np.int64)
    schedule, lags = Schedule(graph), graph.edge.lag_ns

    assert (schedule.run(shorter, lags).times.end_ns <= schedule.run(graph.duration_ns, lags).times.end_ns).all()


@pytest.mark.heavy
@given(graphs())
def test_a_schedule_can_run_again(graph: Graph) -> None:
    """Running with other lags does not change what the next run returns."""
    schedule, as_it_was = Schedule(graph), (graph.duration_ns, graph.edge.lag_ns)
    before = schedule.run(*as_it_was).times
    schedule.run(graph.duration_ns, graph.edge.lag_ns + 7)

    assert before.end_ns.tolist() == schedule.run(*as_it_was).times.end_ns.tolist()


@pytest.mark.heavy
@pytest.mark.parametrize("is_wide", [False, True], ids=["few ranks", "many ranks"])
@given(st.integers(0, 1 << 32))
def test_a_run_after_others_has_the_times_of_the_definition(is_wide: bool, seed: int) -> None:
    """Other durations and lags of some processes, or of all, and edges that are left out: each as if run alone."""
    graph, rng = mesh(seed), np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        if is_wide:
            patch.setattr(schedule, "_MIN_RANKS", 0)
            patch.setattr(schedule, "_MIN_WIDTH", 0)
        prepared = Schedule(graph)
        for changed in (graph, *(other_times(graph, rng) for _ in range(4)), graph):
            begun, ended = (np.array(column) for column in times_by_definition(changed))
            # Where all that a task waits for is left out, it starts before all times, no matter when.
            known = begun > NEVER // 2

            simulation = prepared.run(changed.duration_ns, changed.edge.lag_ns)

            assert np.array_equal(known, simulation.times.start_ns > NEVER // 2)
            assert np.array_equal(begun[known], simulation.times.start_ns[known])
            assert np.array_equal(ended[known], simulation.ends(np.flatnonzero(known)))
            assert np.array_equal(*latest_ends(simulation, ended, known))


def latest_ends(simulation: Simulation, ended: Int64, known: NDArray[np.bool_]) -> tuple[list[int], list[int]]:
    """Return the latest ends of groups of tasks of one process each, plus lags, as asked and by definition."""
    graph = simulation.schedule.graph
    group, lags = 2 * (graph.process.astype(np.int64) + 1) + np.arange(len(graph)) % 2, np.arange(len(graph)) % 7
    ways = simulation.schedule.ways(group, int(group.max()) + 1, np.arange(len(graph)), np.arange(len(graph)))
    asked = simulation.latest(ways, lags)
    groups = np.flatnonzero(np.bincount(group[known], minlength=len(asked))).tolist()
    return asked[groups].tolist(), [int((ended + lags)[known & (group == one)].max()) for one in groups]


def other_times(graph: Graph, rng: np.random.Generator) -> Graph:
    """Return a graph with other durations and lags of some processes, or of all; in some, edges are left out."""
    owners = rng.choice(np.unique(graph.process), rng.integers(1, 4))
    tasks = np.isin(graph.process, owners)
    # Transfers often change alone in how long they take.
    edges = tasks[graph.edge.dst] & ((graph.process[graph.edge.dst] != NO_PROCESS) | bool(rng.integers(2)))
    lags = rng.integers(-5, 30, len(edges))
    lags[rng.random(len(edges)) < rng.choice([0, 0, 0.1])] = NEVER
    durations = np.where(tasks, rng.integers(0, 30, len(tasks)), graph.duration_ns)
    return replace(
        graph, duration_ns=durations, edge=replace(graph.edge, lag_ns=np.where(edges, lags, graph.edge.lag_ns))
    )


# The length of a step in the long run, by host and by device.


def test_host_and_device_each_set_a_length(run: dptrace.Run) -> None:
    """What the slower of host and device needs alone is the least that a step takes in the long run."""
    device_ns = 400_000 + 1_000 + 200_000 + 2_000 + 100_000 + 2_000 + 50_000 + 1_000

    steady = steady_state(run.replay.model)

    assert SteadyState(host_ns=20_000 + 90_000, device_ns=device_ns) == steady
    assert device_ns == steady.step_ns
