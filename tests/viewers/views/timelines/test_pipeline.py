"""A pipeline's schedule, drawn."""

from __future__ import annotations

import io

from rich.console import Console

from dptrace.run.run import Run
from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Box
from dptrace.viewers.terminal.summary import print_run
from dptrace.viewers.views.timelines.pipeline import NO_PIPELINE, bubble_table, labels, schedule, schedule_table
from tests.analysis.cross_rank.test_pipeline_bubble import gpipe, run_of
from tests.support.builders import TimelineBuilder

NONE = Run("r", (TimelineBuilder().compute(0, 50).build(),))


def printed(run: Run) -> list[str]:
    table = bubble_table(run)
    out = io.StringIO()
    Console(file=out, width=100).print(table)
    return out.getvalue().splitlines()


def test_labels_name_the_stage_where_a_rank_has_several() -> None:
    """``F3`` otherwise."""
    actions = run_of(gpipe(2, 1), 1, 2).timelines[1].actions

    assert (["F0", "B0"], ["1F0", "1B0"]) == (labels(actions), labels(actions, 2))


def test_the_drawing_has_a_box_for_each_action() -> None:
    """Forward and backward in the colours that they have everywhere; the longest possible name is in it."""
    drawn = schedule(run_of(gpipe(2, 3), 2_000, 4_000))
    boxes = [mark for mark in drawn.marks if isinstance(mark, Box)]

    assert 12 == len(boxes)
    assert [(0, 2_000, ("F0",)), (2_000, 4_000, ("F1",))] == [(box.left, box.right, box.texts) for box in boxes[:2]]
    assert {box.color for box in boxes} == set(list(theme.PART_COLORS.values())[:2])
    assert "bubble 25.0 %" in drawn.subtitle


def test_the_table_has_a_row_for_each_action() -> None:
    """Times count from the start of the schedule."""
    cells = schedule_table(run_of(gpipe(2, 3), 2_000_000, 4_000_000))

    assert ("rank 1 · stage 1", "F0", "2.000", "2.000") == cells.rows[6]


def test_the_bubble_stands_beside_the_formula_s() -> None:
    """A row for each rank, and one for all."""
    lines = [line.split() for line in printed(run_of(gpipe(2, 4), 10_000_000, 20_000_000))]

    assert ["0", "0", "120.0", "20.0"] == lines[-3]
    assert ["all", "2", "gpipe", "4", "20.0", "20.0"] == lines[-1]


def test_analyze_prints_it_where_there_is_a_pipeline() -> None:
    """Other runs have no such table."""
    texts = []
    for run in (run_of(gpipe(2, 4), 10_000, 20_000), NONE):
        out = io.StringIO()
        print_run(run, Console(file=out, width=120))
        texts.append("bubble's share" in out.getvalue())

    assert [True, False] == texts


def test_a_run_without_a_pipeline_says_so() -> None:
    """Picture and tables."""
    assert (NO_PIPELINE, NO_PIPELINE) == (schedule(NONE).message, schedule_table(NONE).note)
    assert bubble_table(NONE) is None
