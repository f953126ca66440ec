"""Views of steps: maps of ranks by steps, bars of parts, of idle time and of findings."""

from __future__ import annotations

import numpy as np
import pytest

from dptrace.replay.findings import findings_of
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Box, Drawing
from dptrace.viewers.views.steps import (
    breakdown,
    breakdown_table,
    findings,
    findings_table,
    heatmap,
    heatmap_table,
    idle,
    idle_table,
    nodes_table,
    summary,
    summary_table,
)
from tests.support.color_vision import contrast
from tests.support.jobs import MS, late_run, on_nodes
from tests.support.view_cases import CASES, many_ranks


def tips_of(drawing: Drawing) -> list[str]:
    return [mark.tip for mark in drawing.marks if isinstance(mark, Box)]


def cells(case: str) -> list[Box]:
    """Return the cells of the three maps."""
    return [mark for mark in heatmap(CASES[case]()).marks if isinstance(mark, Box)]


def test_missing_steps_are_empty() -> None:
    """A cell stands for each rank and step; it is white with a dash where the rank lacks the step."""
    boxes = cells("uneven")
    missing = [box for box in boxes if "not there" in box.tip]

    assert 3 * 3 * 3 == len(boxes)
    assert 3 * 3 == len(missing)
    assert {("–", "–")} == {box.texts for box in missing}
    assert 3 == sum(row.count("–") for row in heatmap_table(CASES["uneven"]()).rows)


@pytest.mark.slow
def test_one_slow_rank_of_many_is_seen() -> None:
    """Ranks share a row, which shows the one that stands out, in a map that is not taller than a screen."""
    drawing = heatmap(many_ranks(512))
    exposed = [mark for mark in drawing.marks if isinstance(mark, Box) and "Exposed" in mark.tip]
    colors = [box.color for box in exposed]

    assert drawing.height < 900
    odd = [box for box in exposed if colors.count(box.color) < len(colors) / 2]
    assert {"rank 256"} == {box.tip.split(",")[0] for box in odd}


@pytest.mark.heavy
def test_of_many_ranks_a_row_of_the_map_is_a_node() -> None:
    """It shows the rank of the node that stands out, and the table of nodes has the node first, with its ranks."""
    run = on_nodes(late_run(*[60 if rank == 43 else 40 for rank in range(72)]), 8)
    drawing, table = heatmap(run), nodes_table(run)

    assert [f"node-{n}, ranks {8 * n}–{8 * n + 7}" for n in range(9)] == [label for _, label in drawing.y.ticks]
    assert "rank 43, step 0: Exposed communication 20.0 %" in tips_of(drawing)
    assert ("node-5 (held others up)", "40–47", "rank 43") == table.rows[0][:3]


@pytest.mark.slow
def test_bars_of_many_ranks_begin_with_the_late_one() -> None:
    """Of 512 ranks, 96 have a bar, which is said; the one that others wait for is first."""
    run = late_run(*[60 if rank == 300 else 40 for rank in range(512)])
    for drawing in (breakdown(run), idle(run)):
        ranks = list(dict.fromkeys(tip.partition(":")[0] for tip in tips_of(drawing)))

        assert (96, "rank 300") == (len(ranks), ranks[0])
        assert "Of 512 ranks, 96 have a bar" in drawing.subtitle


@pytest.mark.heavy
def test_more_is_brighter_on_a_dark_page() -> None:
    """And every text can be read on its cell, light or dark."""
    boxes = [mark for mark in heatmap(CASES["64 ranks"]()).marks if isinstance(mark, Box)]

    assert boxes
    for box in boxes:
        assert box.dark
        assert min(contrast(box.color, box.ink), contrast(*box.dark)) >= 3.5


@pytest.mark.heavy
def test_colors_are_of_the_difference() -> None:
    """The slow rank, which waits for nobody, is the darkest; walls that hardly differ have one color."""
    boxes = {box.tip.split(":")[0]: box for box in cells("64 ranks") if "Exposed communication" in box.tip}
    walls = {box.color for box in cells("64 ranks") if "Wall time" in box.tip}

    assert int(boxes["rank 32, step 0"].color[3:5], 16) > int(boxes["rank 31, step 0"].color[3:5], 16)
    assert 1 == len(walls)


def test_waiting_has_a_map_where_it_is_known() -> None:
    """With the rank that is waited for; a run that does not show waits has one map less."""
    tips, alone = tips_of(heatmap(late_run(30, 70))), tips_of(heatmap(late_run(30, size=2)))
    table = heatmap_table(late_run(30, 70))

    assert {"rank 0, step 0: Waiting 40.0 %, for rank 1", "rank 1, step 0: Waiting 0.0 %"} <= set(tips)
    assert not any("Waiting" in tip for tip in alone)
    assert ("40.0 %", "0.0 %") == tuple(row[table.columns.index("waiting")] for row in table.rows)


# The parts of each step as bars.


def rows(marks: tuple[object, ...]) -> list[list[Box]]:
    """Return the boxes of each bar, from the top, without the lines of overlapped communication."""
    found: dict[float, list[Box]] = {}
    for mark in marks:
        if isinstance(mark, Box) and mark.bottom - mark.top > 5:
            found.setdefault(mark.top, []).append(mark)
    return [boxes for _, boxes in sorted(found.items())]


def test_bars_are_the_split() -> None:
    """Each starts at a true zero, and its parts add up to the wall time of its step."""
    run = CASES["uneven"]()
    told = breakdown(run)
    walls = [int(wall) for split in run.splits for wall in split.figures["wall_ns"]]

    assert 0 == told.x.low
    assert walls == [round(max(box.right for box in boxes)) for boxes in rows(told.marks)]
    means = [float(np.mean(split.figures["wall_ns"])) for split in run.splits]
    assert means == [max(box.right for box in boxes) for boxes in rows(summary(run).marks)]
    assert (6, 3) == (len(breakdown_table(run).rows), len(summary_table(run).rows))
    for boxes in rows(told.marks):
        assert 0 == min(box.left for box in boxes)
        assert sum(box.right - box.left for box in boxes) == max(box.right for box in boxes)


def test_what_lies_under_compute_is_drawn_below_the_bar() -> None:
    """The line is as long as the communication took, and the legend names it."""
    run = CASES["two ranks"]()
    told = breakdown(run)
    below = [mark for mark in told.marks if isinstance(mark, Box) and "Overlapped" in mark.tip]
    times = [int(ns) for split in run.splits for ns in split.figures["overlapped_comm_ns"]]

    assert times == [round(box.right) for box in below]
    assert "Overlapped communication: under compute, drawn below the bar" in [entry.name for entry in told.legend]


@pytest.mark.heavy
def test_many_ranks_are_one_bar_each() -> None:
    """With too many steps for a bar each, a rank's bar is its mean step, and that is said."""
    told = breakdown(CASES["64 ranks"]())

    assert "a bar is the mean of a rank's" in told.subtitle
    assert 64 == len(rows(told.marks))


def test_a_bar_divides_exposed_communication() -> None:
    """Into transfer and waiting, which names its rank; the parts still add up to the wall time."""
    drawing = breakdown(late_run(30, 70))
    boxes = [mark for mark in drawing.marks if isinstance(mark, Box)]
    (waiting,) = (box for box in boxes if box.color == theme.WAITING)

    assert "rank 0, step 0: Waiting for rank 1 40.00 ms, 40.0 %" == waiting.tip
    assert "Waiting for other ranks" in [entry.name for entry in drawing.legend]
    assert any("rank 0, step 0: Exposed transfer 10.00 ms" in box.tip for box in boxes)
    assert 100 * MS == max(box.right for box in boxes)
    assert "rank 0: Waiting for rank 1 40.00 ms, 40.0 %" in tips_of(summary(late_run(30, 70)))
    unknown = "rank 0, step 0: Exposed communication 50.00 ms, 50.0 %"
    assert unknown in tips_of(breakdown(late_run(30, size=2)))


def test_tables_of_steps_have_waiting_only_where_it_is_known() -> None:
    """A rank on its own has a column for what lacks ranks instead."""
    for table in (breakdown_table, summary_table):
        both, alone = table(late_run(30, 70)), table(late_run(30, size=2))

        assert "40.00" == both.rows[0][both.columns.index("waiting")], table
        assert "incomplete" not in both.columns, table
        assert "waiting" not in alone.columns, table
        assert "50.00" == alone.rows[0][alone.columns.index("incomplete")], table


# Bars of idle time and of findings.


def lengths(marks: tuple[object, ...]) -> list[float]:
    """Return the length of each bar, from the top."""
    found: dict[float, float] = {}
    for mark in marks:
        if isinstance(mark, Box):
            found[mark.top] = max(found.get(mark.top, 0), mark.right)
    return [length for _, length in sorted(found.items())]


def test_idle_causes_add_up_to_the_idle_time() -> None:
    """Of each rank's mean step."""
    run = CASES["64 ranks"]()
    means = [split.figures["idle_ns"].mean() for split in run.splits]

    assert lengths(idle(run).marks) == pytest.approx(means)
    assert 64 == len(idle_table(run).rows)


def test_findings_stand_with_their_costs_dearest_first() -> None:
    """Each with what to do."""
    run = CASES["uneven"]()
    costs = [finding.counted_ns for finding in findings_of(run)]

    assert costs
    assert sorted(costs, reverse=True) == lengths(findings(run).marks)
    names = [name for _, name in findings(run).y.ticks]
    assert len(names) == len(costs)
    for name, finding in zip(names, findings_of(run), strict=True):
        assert f"rank {finding.evidence.rank}" in name
        assert finding.kind != "exposed_comm" or name.startswith(f"exposed {finding.evidence.collective} · ")
    assert [finding.advice for finding in findings_of(run)] == [row[3] for row in findings_table(run).rows]
