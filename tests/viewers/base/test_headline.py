"""The heading of a run's page."""

from __future__ import annotations

import pytest

from dptrace.run.run import Run
from dptrace.viewers.base.headline import headline
from tests.support.builders import TimelineBuilder, two_rank_timelines


def test_a_run_on_gpus() -> None:
    """Name, mode, ranks, devices, steps; the notes as they are."""
    run = Run("runs/first", two_rank_timelines(), {"mode": "ddp", "model": 3}, ("One file is missing.",), 4)
    head = headline(run)

    assert ("first", "runs/first", ("One file is missing.",)) == (head.title, head.path, head.notes)
    assert ("ddp", "2 of 4 ranks", "2 × NVIDIA H100", "2 steps") == head.facts


def test_a_run_on_cpu_says_so() -> None:
    """Operators are not kernels, and the reader must know."""
    build = TimelineBuilder(0, device=-1).compute(0, 10)

    assert ("1 rank", "CPU: operators, not kernels", "1 step") == headline(Run("x", (build.build(),))).facts
    assert "gloo on CPU: operators, not kernels" in headline(Run("x", (build.all_reduce(2, 5).build(),))).facts


def test_several_devices_of_one_rank_are_counted() -> None:
    """Ranks and GPUs are not the same number there."""
    both = tuple(TimelineBuilder(0, device=device).compute(0, 10).build() for device in (0, 1))

    assert ("1 rank", "2 × NVIDIA H100", "1 step") == headline(Run(".", both)).facts


def test_a_mode_that_is_the_run_s_name_is_not_said_twice() -> None:
    """``runs/naive`` in mode naive is called naive once."""
    run = Run("runs/naive", two_rank_timelines(), {"mode": "naive", "model": "medium"}, (), 2)

    assert ("medium", "2 ranks", "2 × NVIDIA H100", "2 steps") == headline(run).facts


@pytest.mark.parametrize(("overhead", "said"), [(0.18, True), (0.1, False), (-0.3, False), (None, False), ("x", False)])
def test_a_notable_overhead_is_part_of_the_heading(overhead: object, said: bool) -> None:
    """Above 10 % the figures are not those of an ordinary step."""
    run = Run("x", two_rank_timelines(), {"profiler_overhead": overhead}, (), 2)

    assert said == any("profiler" in fact for fact in headline(run).facts)
    assert said == any("18 %" in fact for fact in headline(run).facts)
