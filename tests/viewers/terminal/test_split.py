"""The split as tables."""

from __future__ import annotations

import io
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console, RenderableType

from dptrace.analysis.findings.detect import Finding
from dptrace.analysis.per_gpu.split import split
from dptrace.core.units import milliseconds
from dptrace.run.cross_rank import analyze_cross_rank
from dptrace.run.run import Run
from dptrace.viewers.terminal.split import findings_list, step_tables, timing_table
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.rank_cases import rank, reduce


def printed(run: Run, all_rows: bool = False, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(*step_tables(run, all_rows))
    return out.getvalue()


def test_rows_are_the_splits_figures() -> None:
    """The numbers of a row are the figures of the split, in ms."""
    run = Run("r", two_rank_timelines())
    text = printed(run, all_rows=True)
    figures = split(run.timelines[1]).figures

    row = next(line for line in text[text.index("rank 1") :].splitlines() if line.startswith("0"))
    assert [milliseconds(int(figures[name][0])) for name in ("forward_ns", "backward_ns")] == row.split()[1:3]


@pytest.mark.heavy
def test_many_ranks_and_steps_are_summed_up_unless_all_is_asked() -> None:
    """Forty ranks give one short table; --all gives each rank its own."""
    builders = (TimelineBuilder(rank, bounds=tuple(range(0, 3100, 100))).compute(0, 30) for rank in range(40))
    run = Run("r", tuple(build.build() for build in builders))

    assert len(printed(run).splitlines()) < 25
    assert "…" in printed(run)
    assert "rank 39" in printed(run, all_rows=True)


def test_waiting_stands_beside_the_communication_it_is_part_of() -> None:
    """In ms, for each rank; without a known wait there is no column."""
    run = Run("r", two_rank_timelines())
    heading, row = printed(run).splitlines()[2:4]
    wait = run.cross_rank.exposed_waits[0].mean()["exposed_wait_ns"] or 0

    assert ["comm", "waiting", "memory"] == heading.split()[5:8]
    assert milliseconds(wait) == row.split()[6]
    assert "waiting" not in printed(Run("r", two_rank_timelines()[:1]))


def test_ranks_missing_have_a_column_only_where_there_are_any() -> None:
    """A rank on its own shows no waits, so that all of its exposed communication stands there."""
    alone = printed(Run("r", two_rank_timelines()[:1], world_size=2))

    assert "incom" in alone
    assert "incom" not in printed(Run("r", two_rank_timelines()))


def test_figures_are_whole_in_a_terminal_of_80_columns() -> None:
    """Waiting is one column more, and no digit may be cut for it."""
    run = Run("r", tuple(two_rank_timelines()))
    long = Run("r", tuple(replace(t, start_ns=t.start_ns * 5_000, end_ns=t.end_ns * 5_000) for t in run.timelines))

    assert "…" not in printed(run, width=80)
    assert "…" not in printed(long, width=80)


# Figures across ranks in the terminal.


def cross_rank_printed(what: RenderableType | None) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_a_finding_has_its_cost_its_advice_and_where_to_look() -> None:
    """What a user needs to act on it and to check it; markup from a trace stays text."""
    where = {"step": "ProfilerStep#[red]5", "rank": 2}
    text = cross_rank_printed(
        findings_list((Finding("straggler", "Rank 2 waits.", "Look there.", 7_680_000, 0.183, where),))
    )

    assert "7.68 ms" in text
    assert "18 %" in text
    assert "→ Look there. (see ProfilerStep#[red]5, rank 2)" in text


def test_nothing_found_is_said() -> None:
    """An empty list could look like a failure."""
    assert "nothing costs 1 %" in cross_rank_printed(findings_list(()))


def test_like_collectives_are_a_row_with_their_bandwidth() -> None:
    """Two all-reduces of one size: the median transfer, and the wait of the rank that came first."""
    run = Run("r", two_rank_timelines(), world_size=2)
    row = cross_rank_printed(timing_table(run.cross_rank)).splitlines()[-1].split()

    assert ["all_reduce", "2", "4.1", "kB"] == row[:4]
    assert "0.1" == row[-1]


def test_one_rank_has_no_table() -> None:
    """No table where there is nothing to compare."""
    assert timing_table(Run("r", (TimelineBuilder().compute(0, 10).build(),)).cross_rank) is None


def test_rows_of_groups_of_one_purpose_are_one_unless_all_are_asked_for() -> None:
    """Two replicas' sums: one row that names what the groups are for, or a row for each with its ranks."""
    devices = []
    for number in range(4):
        about: dict[str, Any] = {
            "group": str(number // 2),
            "group_size": 2,
            "ranks": (number // 2 * 2, number // 2 * 2 + 1),
        }
        calls = [reduce(0, (i + 1) * 1_000_000, description="mesh_tp", **about) for i in range(2)]
        devices.append(rank(number, calls))
    analysis = analyze_cross_rank(devices, 4)

    (row,) = [line.split() for line in cross_rank_printed(timing_table(analysis)).splitlines() if "all_reduce" in line]
    assert ["all_reduce", "mesh_tp", "4"] == row[:3]
    all_rows = cross_rank_printed(timing_table(analysis, all_rows=True))
    assert "ranks 0, 1" in all_rows
    assert "ranks 2, 3" in all_rows
