"""Ranks by steps as a map."""

from __future__ import annotations

from dptrace.viewers.base.marks import Box
from dptrace.viewers.views.steps.heatmap import heatmap, heatmap_table
from tests.support.color_vision import contrast
from tests.support.jobs import late_run
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
