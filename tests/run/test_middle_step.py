"""The step of median length."""

from __future__ import annotations

from dptrace.run.middle_step import middle_step_of
from dptrace.run.run import Run
from tests.support.synthetic import training_run


def test_the_middle_step_is_cut_out() -> None:
    """Every GPU has that step only."""
    run = middle_step_of(training_run(600, ranks=2, steps=3))

    assert [1, 1] == [len(timeline.windows) for timeline in run.timelines]
    assert () == middle_step_of(Run("x", ())).timelines
