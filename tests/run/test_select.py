"""A part of a run keeps its figures of the whole run."""

from __future__ import annotations

import numpy as np
import pytest

from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.errors import DptraceError
from dptrace.run.run import Run
from dptrace.run.select import step_number
from tests.support.builders import TimelineBuilder
from tests.support.synthetic import training_run


def test_chosen_steps_keep_their_figures() -> None:
    """All nine, and every collective's, to the nanosecond."""
    run = training_run(3_000, ranks=2, steps=5)
    part = run.select(steps=(5, 7))
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
    part = run.select(ranks={0, 2})

    assert [0, 2] == [timeline.rank for timeline in part.timelines]
    assert (3, run.splits[2].total()) == (part.world_size, part.splits[1].total())


def test_what_was_left_out_is_noted() -> None:
    """A note names the selected steps, so that a part is not mistaken for the whole run."""
    assert any("steps 4 to 5" in note for note in training_run(900).select(steps=(4, 5)).notes)


def test_nothing_left_says_what_there_is() -> None:
    """The message lists the ranks, or the steps, of the run."""
    run = training_run(900)
    unnamed = Run("x", (TimelineBuilder(0).compute(0, 9).build(),))
    with pytest.raises(DptraceError, match=r"runs/synthetic: .* 0, 1\."):
        run.select(ranks={7})
    with pytest.raises(DptraceError, match=r"from 9 to 12\..* ProfilerStep#4 to ProfilerStep#6\."):
        run.select(steps=(9, 12))
    with pytest.raises(DptraceError, match=r"one step: ProfilerStep#0\."):
        unnamed.select(steps=(9, 12))
    with pytest.raises(DptraceError, match="no steps"):
        Run("x", (TimelineBuilder(0, bounds=()).compute(0, 9).build(),)).select(steps=(9, 12))


def test_a_collective_that_runs_into_the_next_step_keeps_its_own_figures() -> None:
    """The compute that hides it there is kept, so that its exposed and overlapped time do not change."""
    build = TimelineBuilder(bounds=(0, 100, 300)).compute(0, 10).all_reduce(20, 200).compute(110, 160)
    run = Run("x", (build.build(),))
    columns = ["exposed_ns", "overlapped_ns"]

    assert run.collectives()[columns].values.tolist() == run.select(steps=(0, 0)).collectives()[columns].values.tolist()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ProfilerStep#4", 4),
        ("step 12", 12),
        ("ProfilerStep#²", None),
        (f"ProfilerStep#{'9' * 5000}", None),
        ("x", None),
    ],
)
def test_names_of_steps_from_strangers_are_no_error(name: str, number: int | None) -> None:
    """A sign that only looks like a digit, or more digits than Python reads, is no number."""
    assert number == step_number(name)
