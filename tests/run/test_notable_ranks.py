"""The most notable ranks of a run."""

from __future__ import annotations

from msgspec.structs import replace

from dptrace.run.notable_ranks import middle_step_of, notable_ranks
from dptrace.run.run import Run
from tests.support.builders import TimelineBuilder
from tests.support.jobs import job, run_of
from tests.support.synthetic import training_run


def test_the_one_that_stands_out_comes_first() -> None:
    """The slowest rank comes before the others, which follow by rank after a typical one."""
    timelines = [TimelineBuilder(rank, bounds=(0, 1000)).compute(0, 700 + rank).build() for rank in range(6)]
    timelines[4] = TimelineBuilder(4, bounds=(0, 1500)).compute(0, 1400).build()

    found = notable_ranks(run_of(timelines))

    assert 4 == found[0].index
    assert "slowest" in found[0].why
    assert [0, 1, 2, 3, 4, 5] == sorted(one.index for one in found)
    rest = [one.index for one in found if not one.why]
    assert sorted(rest) == rest
    assert ["typical"] == [one.why for one in found if "typical" in one.why]


def test_ranks_that_are_alike_keep_their_order() -> None:
    """Except for the one that is called typical."""
    found = notable_ranks(run_of([replace(job(ranks=1).timelines[0], rank=rank) for rank in range(4)]))

    assert ["typical", "", "", ""] == [one.why for one in found]
    assert [0, 1, 2, 3] == [one.index for one in found]


def test_a_rank_without_steps_is_left_out() -> None:
    """A run without ranks has no notable rank."""
    none = TimelineBuilder(1, bounds=()).compute(1, 3).build()

    assert [0] == [one.index for one in notable_ranks(run_of([job(ranks=1).timelines[0], none]))]
    assert () == notable_ranks(Run("x", ()))


# The step of median length.


def test_the_middle_step_is_cut_out() -> None:
    """Every GPU has that step only."""
    run = middle_step_of(training_run(600, ranks=2, steps=3))

    assert [1, 1] == [len(timeline.windows) for timeline in run.timelines]
    assert () == middle_step_of(Run("x", ())).timelines
