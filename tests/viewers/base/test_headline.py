"""The heading of a run's page."""

from __future__ import annotations

from dptrace.run.run import Run
from dptrace.viewers.base.headline import headline
from tests.support.builders import TimelineBuilder, two_rank_timelines

CPU = TimelineBuilder(0, device=-1).compute(0, 10)
TWO_GPUS = tuple(TimelineBuilder(0, device=device).compute(0, 10).build() for device in (0, 1))


def test_the_headline_is_the_name_and_how_it_was_recorded() -> None:
    """Mode, ranks, devices and steps; on a CPU, that operators are no kernels."""
    for run, line in (
        (
            Run("runs/first", two_rank_timelines(), {"mode": "ddp", "model": 3}, (), 4),
            "first · ddp · 2 of 4 ranks · 2 × NVIDIA H100 · 2 steps",
        ),
        # A mode that is the run's name is not said twice.
        (
            Run("runs/naive", two_rank_timelines(), {"mode": "naive", "model": "medium"}, (), 2),
            "naive · medium · 2 ranks · 2 × NVIDIA H100 · 2 steps",
        ),
        (Run("x", (CPU.build(),)), "x · 1 rank · CPU: operators, not kernels · 1 step"),
        (
            Run("x", (CPU.all_reduce(2, 5).build(),)),
            "x · 1 rank · gloo on CPU: operators, not kernels · 1 step",
        ),
        (Run(".", TWO_GPUS), ". · 1 rank · 2 × NVIDIA H100 · 1 step"),
    ):
        assert line == headline(run).line, (run, line)


def test_a_notable_overhead_is_part_of_the_heading() -> None:
    """Above 10 % the figures are not those of an ordinary step."""
    for overhead, said in ((0.18, True), (0.1, False), (-0.3, False), (None, False), ("x", False)):
        run = Run("x", two_rank_timelines(), {"profiler_overhead": overhead}, (), 2)

        assert said == any("profiler" in fact for fact in headline(run).facts), (overhead, said)
        assert said == any("18 %" in fact for fact in headline(run).facts), (overhead, said)
