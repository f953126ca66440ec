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


def test_the_sentence_stands_first_and_the_notes_last() -> None:
    """What it comes to is read before the tables; what to mind stands where the eye ends."""
    lines = printed(Run("runs/x", two_rank_timelines(), notes=("mind this",))).splitlines()

    assert lines[1].startswith("A step takes 0.10 ms (median): ")
    noted = [line.strip() for line in lines if line.startswith("!")]
    assert "! mind this" == noted[0]
    assert noted[-1] == lines[-1].strip()
    assert any(line.startswith("idle by cause") for line in lines)


def test_rows_left_out_are_told() -> None:
    """That there is more, and how to see it."""
    timelines = tuple(TimelineBuilder(rank).compute(0, 30).build() for rank in range(9))

    assert "--all shows every rank and every step." in printed(Run("r", timelines))
    assert "--all" not in printed(Run("r", timelines), every=True)


def test_a_run_without_communication_says_so() -> None:
    """No table of collectives, and words instead of a share."""
    out = io.StringIO()
    run = Run("r", (TimelineBuilder().compute(0, 10).build(),))
    print_collectives(run, Console(file=out, width=100))

    assert "no communication" in printed(run)
    assert "No communication in this run." in out.getvalue()
