"""Part of a run keeps the figures that it had in the whole."""

from __future__ import annotations

import numpy as np
import pytest

from dptrace.errors import DptraceError, UsageError
from dptrace.run import Run
from dptrace.split import FIGURES
from dptrace.viewers.select import parse_ranks, parse_steps, select
from tests.builders import TimelineBuilder
from tests.synthetic import training_run


def test_chosen_steps_keep_their_figures() -> None:
    """All nine, and every collective's, to the nanosecond."""
    run = training_run(3_000, ranks=2, steps=5)
    part = select(run, steps=(5, 7))
    for whole, cut in zip(run.splits, part.splits, strict=True):
        assert ("ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#7") == cut.names
        for figure in FIGURES:
            assert whole.figures[figure][1:4].tolist() == cut.figures[figure].tolist()
        for column in ("count", "bytes", "exposed_ns", "overlapped_ns"):
            expected = getattr(whole.comm["all_reduce"], column)[1:4]
            assert expected.tolist() == getattr(cut.comm["all_reduce"], column).tolist()
    assert len(part.timelines[0]) < len(run.timelines[0])
    assert np.all(part.timelines[0].step < 3)


def test_chosen_ranks_are_whole() -> None:
    """The others are gone, and the world is as large as before."""
    run = training_run(900, ranks=3)
    part = select(run, ranks={0, 2})

    assert [0, 2] == [timeline.rank for timeline in part.timelines]
    assert (3, run.splits[2].total()) == (part.world_size, part.splits[1].total())


def test_what_was_left_out_is_noted() -> None:
    """Nobody shall take part of a run for all of it."""
    assert "Only steps 4 to 5 are shown, as asked." in select(training_run(900), steps=(4, 5)).notes


def test_nothing_left_says_what_there_is() -> None:
    """Which ranks, which steps."""
    run = training_run(900)
    unnamed = Run("x", (TimelineBuilder(0).compute(0, 9).build(),))
    with pytest.raises(DptraceError, match=r"runs/synthetic: none of the ranks .*: 0, 1\."):
        select(run, ranks={7})
    with pytest.raises(DptraceError, match=r"from 9 to 12\. There are: ProfilerStep#4 to ProfilerStep#6\."):
        select(run, steps=(9, 12))
    with pytest.raises(DptraceError, match=r"There is one: ProfilerStep#0\."):
        select(unnamed, steps=(9, 12))


@pytest.mark.parametrize(("text", "ranks"), [("0", {0}), ("0,2", {0, 2}), ("0-2, 5", {0, 1, 2, 5})])
def test_ranks_are_read(text: str, ranks: set[int]) -> None:
    """Numbers and ranges."""
    assert ranks == parse_ranks(text)


@pytest.mark.parametrize(("text", "steps"), [("4", (4, 4)), ("4:6", (4, 6))])
def test_steps_are_read(text: str, steps: tuple[int, int]) -> None:
    """One, or first and last."""
    assert steps == parse_steps(text)


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "1:2"])
def test_other_ranks_are_refused(text: str) -> None:
    """With an example."""
    with pytest.raises(UsageError, match="for example 0,1 or 0-3"):
        parse_ranks(text)


@pytest.mark.parametrize("text", ["", "a", "6:4", "4-6", ":"])
def test_other_steps_are_refused(text: str) -> None:
    """With an example."""
    with pytest.raises(UsageError, match="for example 4:6"):
        parse_steps(text)
