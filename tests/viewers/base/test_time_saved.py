"""Sentences on the time that the second run saves."""

from __future__ import annotations

import pytest

from dptrace.comparison.compare import compare
from dptrace.comparison.step_alignment import align_steps, run_steps
from dptrace.viewers.base import time_saved
from tests.support.builders import TimelineBuilder
from tests.support.jobs import job, run_of


def of_lengths(a: int, b: int, steps: int, metadata: tuple[dict[str, str], ...] = ({}, {})) -> str:
    bounds = [tuple(n * k for k in range(steps + 1)) for n in (a, b)]
    both = zip(bounds, metadata, strict=True)
    runs = [run_of([TimelineBuilder(0, bounds=one).build()], metadata=info) for one, info in both]
    return time_saved.time_saved_sentence(align_steps(run_steps(runs[0]), run_steps(runs[1])))


def of_jobs(factor: float, other: float) -> str:
    """Compare a job with one whose backward takes longer, or less, but draw other steps than the verdict's."""
    compared = compare(job(), job(seed=1, factors={"backward": factor}))
    drawn = run_steps(job()), run_steps(job(seed=1, factors={"backward": other}))
    return time_saved.time_saved_sentence(align_steps(*drawn, comparison=compared))


def test_the_sentence_says_who_is_faster() -> None:
    """It has the difference, its share, and how long a step of both takes."""
    for a, b, steps, told in (
        (
            52_000_000,
            41_600_000,
            3,
            "In the 3 steps drawn, B takes 10.4 ms (20 %) less per step: 41.6 ms against A's 52.0 ms.",
        ),
        (10_000_000, 11_200_000, 1, "In the step drawn, B takes 1.20 ms (12 %) more: 11.2 ms against A's 10.0 ms."),
        (7, 7, 2, "A step of A and of B takes 7 ns, the mean of 2."),
    ):
        assert told == of_lengths(a, b, steps), a


def test_nothing_is_saved_against_another_work() -> None:
    """The sentence has both times, and why they cannot be compared."""
    told = of_lengths(7_000, 9_000, 1, ({"model": "m1"}, {"model": "m2"}))

    assert told.startswith("Not compared: A trained the model m1, B m2. A step of A takes 7.00 µs and one of B 9.00")
    assert "%" not in told


@pytest.mark.slow
def test_time_is_saved_only_where_the_comparison_says_so() -> None:
    """Beyond noise, and in the direction of the drawn steps; otherwise B takes less or more in the steps drawn."""
    for factor, other, verb in (
        (0.8, 0.8, "B saves "),
        (1.2, 1.2, "B loses "),
        (1.0, 0.9, " less per step: "),
        (0.8, 1.2, " more per step: "),
    ):
        sentence = of_jobs(factor, other)

        assert verb in sentence, factor
        assert ("saves" in sentence or "loses" in sentence) == (factor == other != 1), factor


def test_a_note_on_both_is_said_once() -> None:
    """Other notes have the letter of their run."""
    one, two = (run_of([TimelineBuilder(0).build()], notes=notes) for notes in (("same", "only A"), ("only B", "same")))

    assert ["A and B: same", "A: only A", "B: only B"] == time_saved.notes_of_all(one, two)
