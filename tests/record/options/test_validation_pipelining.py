"""Schedules, stages and micro-batches of a pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.catalog import OPTIONS
from dptrace.record.options.validation import check_pipeline

(_SCHEDULES,) = (option.choices for option in OPTIONS if option.name == "schedule")


def filled(ranks: int = 4, **given: Any) -> tuple[Any, ...]:
    options = {"schedule": "1f1b", "micro_batches": None, "virtual_stages": None, "batch_size": 1024} | given
    check_pipeline(options, ranks)
    return options["schedule"], options["micro_batches"], options["virtual_stages"]


def test_what_is_not_said_is_filled_in() -> None:
    """The defaults are four micro-batches for each rank and one stage on each; interleaved has two."""
    assert ("1f1b", 16, 1) == filled()
    assert ("interleaved", 8, 2) == filled(2, schedule="interleaved")
    assert ("zero-bubble", 4, 3) == filled(schedule="zero-bubble", micro_batches=4, virtual_stages=3)


@pytest.mark.parametrize("schedule", _SCHEDULES)
def test_one_rank_is_a_pipeline_too(schedule: str) -> None:
    """With one stage, or two of its own, nothing is refused."""
    assert 4 == filled(1, schedule=schedule)[1]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"micro_batches": 0}, "must be at least 1"),
        ({"micro_batches": 100}, "divisible by 100 micro-batches; try 1100"),
        ({"micro_batches": 2}, "at least one for each of 4 ranks"),
        ({"virtual_stages": 2}, "has one stage on each rank"),
        ({"virtual_stages": 0}, "each rank needs at least 1 stage"),
        ({"schedule": "interleaved", "virtual_stages": 1}, "is 1f1b; use 2 or more"),
        ({"schedule": "interleaved", "micro_batches": 9, "batch_size": 9}, "try 8 or 12"),
        (
            {"schedule": "zero-bubble", "micro_batches": 9, "batch_size": 9},
            "rounds of one micro-batch for each of 4 ranks",
        ),
    ],
)
def test_what_no_schedule_can_do_is_refused(given: dict[str, Any], says: str) -> None:
    """The message suggests values that work."""
    with pytest.raises(UsageError, match=says):
        filled(**given)


def test_rounds_need_not_be_of_as_many_as_there_are_ranks() -> None:
    """torch makes rounds of equal size: 10 micro-batches on 4 ranks are 2 rounds of 5, and 3 are one round of 3."""
    assert 10 == filled(schedule="interleaved", micro_batches=10, batch_size=10)[1]
    assert 3 == filled(schedule="zero-bubble", micro_batches=3, batch_size=9)[1]
