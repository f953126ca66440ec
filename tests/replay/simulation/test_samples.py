"""Figures of the same steps on all ranks, recorded and replayed."""

from __future__ import annotations

import numpy as np

import dptrace
from dptrace.replay.simulation.samples import (
    choose,
    mean_range,
    median_range,
    outcome,
    recorded_figures,
    simulated_figures,
)


def test_the_unchanged_graph_has_the_recorded_figures(run: dptrace.Run) -> None:
    """Each figure of each step on each rank comes out of the replay as it was recorded."""
    chosen = choose(run, run)

    assert np.array_equal(recorded_figures(run, chosen), simulated_figures(outcome(run.replay.model, chosen), chosen))


def test_selected_steps_are_found_in_the_whole_run(run: dptrace.Run) -> None:
    """One rank and two of three steps: their numbers are those in the whole run."""
    chosen = choose(run.select(ranks={1}, steps=(1, 2)), run)

    assert ((1,), ("ProfilerStep#1", "ProfilerStep#2")) == (chosen.timelines, chosen.steps)
    assert [[1, 2]] == [places.tolist() for places in chosen.places]


def test_equal_steps_have_no_range() -> None:
    """Resampling equal steps gives the same median and mean each time."""
    equal = np.full(5, 7.0)

    assert (7.0, 7.0) == median_range(equal) == mean_range(equal)
