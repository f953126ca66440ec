"""Why GPUs were idle, as a table."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from rich.console import Console

from dptrace.run.run import Run
from dptrace.viewers.terminal.split import idle_table
from tests.support.builders import TimelineBuilder


def printed(run: Run, all_rows: bool = False) -> list[str]:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(idle_table(run, all_rows))
    return capture.get().splitlines()


def test_a_row_for_each_rank_with_its_causes() -> None:
    """The mean step of each rank, its causes beside each other, and what they add up to."""
    timelines = []
    for rank in (0, 1):
        build = TimelineBuilder(rank, bounds=(0, 10_000_000, 20_000_000)).compute(0, 4_000_000)
        timeline = build.compute(10_000_000, 20_000_000).build()
        timelines.append(replace(timeline, launch_ns=np.array([0, 10_000_000 if rank else 1])))

    rows = [line.split() for line in printed(Run("r", tuple(timelines)))[-2:]]

    assert [["0", "0.00", "3.00", "3.00"], ["1", "3.00", "0.00", "3.00"]] == rows


def test_many_ranks_are_cut_unless_all_are_asked_for() -> None:
    """A job of a hundred ranks fits the screen."""
    timelines = tuple(TimelineBuilder(rank).compute(50, 60).build() for rank in range(100))

    assert "…" == printed(Run("r", timelines))[-1].split()[0]
    assert "99" == printed(Run("r", timelines), all_rows=True)[-1].split()[0]


def test_no_idling_no_table() -> None:
    """A GPU that is always busy needs none."""
    assert idle_table(Run("r", (TimelineBuilder().compute(0, 100).build(),))) is None
