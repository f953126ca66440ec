"""Ranks by steps as a map."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Box
from dptrace.viewers.base.table import TextTable
from dptrace.viewers.views.steps import breakdown, breakdown_table, heatmap, heatmap_table, summary, summary_table
from tests.support.color_vision import contrast
from tests.support.jobs import MS, late_run
from tests.support.view_cases import CASES


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


def test_the_slow_rank_is_the_darkest() -> None:
    """By what is idle or exposed, each map for itself."""
    boxes = [box for box in cells("64 ranks") if "Exposed communication" in box.tip]
    light = {box.tip.split(",")[0]: int(box.color[3:5], 16) for box in boxes}

    assert 64 == len(light)
    assert light["rank 32"] > light["rank 31"]  # it comes late, so that it waits for nobody


def test_a_thousandth_more_is_no_straggler() -> None:
    """Walls that hardly differ have colours that hardly differ."""
    colors = [box.color for box in cells("64 ranks") if "Wall time" in box.tip]

    assert 1 == len(set(colors))


def test_more_is_brighter_on_a_dark_page() -> None:
    """And every text can be read on its cell, light or dark."""
    boxes = [mark for mark in heatmap(CASES["64 ranks"]()).marks if isinstance(mark, Box)]

    assert boxes
    for box in boxes:
        assert box.dark
        assert min(contrast(box.color, box.ink), contrast(*box.dark)) >= 3.5


def test_waiting_has_a_map_where_it_is_known() -> None:
    """With the rank that is waited for; a run that does not show waits has one map less."""
    tips = [mark.tip for mark in heatmap(late_run(30, 70)).marks if isinstance(mark, Box)]
    alone = [mark.tip for mark in heatmap(late_run(30, size=2)).marks if isinstance(mark, Box)]

    assert "rank 0, step 0: Waiting 40.0 %, for rank 1" in tips
    assert "rank 1, step 0: Waiting 0.0 %" in tips
    assert not any("Waiting" in tip for tip in alone)
    table = heatmap_table(late_run(30, 70))
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


def test_many_ranks_are_one_bar_each() -> None:
    """With too many steps for a bar each, a rank's bar is its mean step, and that is said."""
    told = breakdown(CASES["64 ranks"]())

    assert "a bar is the mean of a rank's" in told.subtitle
    assert 64 == len(rows(told.marks))


def test_means_are_of_each_rank_s_own_steps() -> None:
    """Also where ranks have different numbers of them."""
    run = CASES["uneven"]()
    means = [float(np.mean(split.figures["wall_ns"])) for split in run.splits]

    assert means == [max(box.right for box in boxes) for boxes in rows(summary(run).marks)]


def test_tables_hold_all_nine_figures() -> None:
    """A row for each step, or for each rank."""
    run = CASES["uneven"]()

    assert 6 == len(breakdown_table(run).rows)
    assert ("rank 0", "0") == breakdown_table(run).rows[0][:2]
    assert 3 == len(summary_table(run).rows)
    assert {"forward", "wall", "overlapped comm", "overlap"} <= set(summary_table(run).columns)


def test_a_bar_divides_exposed_communication() -> None:
    """Into transfer and waiting, which names its rank; the parts still add up to the wall time."""
    drawing = breakdown(late_run(30, 70))
    boxes = [mark for mark in drawing.marks if isinstance(mark, Box)]
    (waiting,) = (box for box in boxes if box.color == theme.WAITING)

    assert "rank 0, step 0: Waiting for rank 1 40.00 ms, 40.0 %" == waiting.tip
    assert "Waiting for other ranks" in [entry.name for entry in drawing.legend]
    assert any("rank 0, step 0: Exposed transfer 10.00 ms" in box.tip for box in boxes)
    assert 100 * MS == max(box.right for box in boxes)


def test_the_mean_step_divides_it_as_well() -> None:
    """It names the rank that most of the waiting of all steps was for."""
    tips = [mark.tip for mark in summary(late_run(30, 70)).marks if isinstance(mark, Box)]

    assert "rank 0: Waiting for rank 1 40.00 ms, 40.0 %" in tips


@pytest.mark.parametrize("table", [breakdown_table, summary_table])
def test_tables_of_steps_have_waiting_only_where_it_is_known(table: Callable[[Run], TextTable]) -> None:
    """A rank on its own has a column for what lacks ranks instead."""
    both, alone = table(late_run(30, 70)), table(late_run(30, size=2))

    assert "40.00" == both.rows[0][both.columns.index("waiting")]
    assert "incomplete" not in both.columns
    assert "waiting" not in alone.columns
    assert "50.00" == alone.rows[0][alone.columns.index("incomplete")]


def test_an_unknown_wait_is_one_part() -> None:
    """Exposed communication, as a whole."""
    tips = [mark.tip for mark in breakdown(late_run(30, size=2)).marks if isinstance(mark, Box)]

    assert "rank 0, step 0: Exposed communication 50.00 ms, 50.0 %" in tips
