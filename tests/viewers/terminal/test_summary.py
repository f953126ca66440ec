"""A run in the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from dptrace.run.run import Run
from dptrace.viewers.terminal.summary import print_collectives, print_run
from tests.support.builders import TimelineBuilder, two_rank_timelines


def printed(run: Run, every: bool = False) -> str:
    out = io.StringIO()
    print_run(run, Console(file=out, width=100, color_system=None), every)
    return out.getvalue()


def test_findings_come_before_tables_and_notes_last() -> None:
    """The headline, the findings, the tables, the notes."""
    lines = printed(Run("runs/x", two_rank_timelines(), notes=("mind this",))).splitlines()

    assert lines[1].startswith("A step takes 0.10 ms (median): ")
    noted = [line.strip() for line in lines if line.startswith("!")]
    assert "! mind this" == noted[0]
    assert noted[-1] == lines[-1].strip()
    places = [
        next(i for i, line in enumerate(lines) if line.startswith(start))
        for start in (
            "Mean step, ",
            "Findings",
            "median of the steps",
            "collectives, per GPU",
            "idle by cause",
            "--all",
        )
    ]
    assert places == sorted(places)


def test_the_headline_has_the_profilers_overhead() -> None:
    """Where run.json has it."""
    ranks = [{"unprofiled_ns": [100_000], "profiled_ns": [110_000]}]
    text = printed(Run("r", two_rank_timelines(), metadata={"profiler_overhead": 0.1, "ranks": ranks}))

    assert "100 µs without the profiler and 110 µs with it (+10 %)" in text
    assert text.index("profiler") < text.index("Findings")


def test_the_mean_step_adds_up() -> None:
    """Its shares are those of the whole run; parts that no step has are left out."""
    text = printed(Run("r", (TimelineBuilder().compute(0, 30).build(),)))

    assert "Mean step, 100 ns: forward 30 ns (30 %), idle 70 ns (70 %)." in text


def test_rows_left_out_are_told() -> None:
    """How to see the rest."""
    timelines = tuple(TimelineBuilder(rank).compute(0, 30).build() for rank in range(9))

    assert "--all prints every table in full" in printed(Run("r", timelines))
    assert "--all" not in printed(Run("r", timelines), every=True)


def test_a_run_without_communication_says_so() -> None:
    """No table of collectives, and a sentence instead of a share."""
    out = io.StringIO()
    run = Run("r", (TimelineBuilder().compute(0, 10).build(),))
    print_collectives(run, Console(file=out, width=100))

    assert "no communication" in printed(run)
    assert "No communication in this run." in out.getvalue()
