"""Figures across ranks in the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console, RenderableType

from dptrace.analysis.findings.detect import Finding
from dptrace.run.cross_rank import analyze_cross_rank
from dptrace.run.run import Run
from dptrace.viewers.terminal.tables.cross_rank import findings_list, timing_table
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.rank_cases import rank, reduce


def printed(what: RenderableType | None) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_a_finding_has_its_cost_its_advice_and_where_to_look() -> None:
    """What a user needs to act on it and to check it; markup from a trace stays text."""
    where = {"step": "ProfilerStep#[red]5", "rank": 2}
    text = printed(findings_list((Finding("straggler", "Rank 2 waits.", "Look there.", 7_680_000, 0.183, where),)))

    assert "7.68 ms" in text
    assert "18 %" in text
    assert "→ Look there. (see ProfilerStep#[red]5, rank 2)" in text


def test_the_share_stands_apart_from_a_text_of_several_lines() -> None:
    """Text at the begin of its second line, which would continue the first, is not preceded by a number."""
    text = "Half of its time is exposed. " * 5
    first, *others = printed(findings_list((Finding("x", text, "Look there.", 1_000_000, 0.039, {}),))).splitlines()[1:]

    assert "1.00 ms (3.9 %) Half" in first
    assert others
    assert {""} == {line[: first.index("Half")].strip() for line in others}


def test_nothing_found_is_said() -> None:
    """An empty list could look like a failure."""
    assert "nothing costs 1 %" in printed(findings_list(()))


def test_like_collectives_are_a_row_with_their_bandwidth() -> None:
    """Two all-reduces of one size: the median transfer, and the wait of the rank that came first."""
    run = Run("r", two_rank_timelines(), world_size=2)
    row = printed(timing_table(run.cross_rank)).splitlines()[-1].split()

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

    (row,) = [line.split() for line in printed(timing_table(analysis)).splitlines() if "all_reduce" in line]
    assert ["all_reduce", "mesh_tp", "4"] == row[:3]
    every = printed(timing_table(analysis, every=True))
    assert "ranks 0, 1" in every
    assert "ranks 2, 3" in every
