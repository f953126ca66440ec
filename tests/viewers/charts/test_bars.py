"""Helpers for views of bars."""

from __future__ import annotations

from dptrace.viewers.base import theme
from dptrace.viewers.base.marks import Box
from dptrace.viewers.charts.bars import Bar, RowLayout, bar_chart, rank_labels, share, with_steps
from tests.support.view_cases import CASES


def test_shares_never_hide_what_is_there() -> None:
    """More than nothing is not 0 %."""
    assert ["50.0 %", "< 0.1 %", "0.0 %", "0.0 %"] == [share(1, 2), share(1, 9_999), share(0, 5), share(0, 0)]


def test_parts_stand_end_to_end() -> None:
    """They start at zero, skip parts without time, and have tooltips with time and share."""
    colors = list(theme.PART_COLORS.values())
    bar = Bar("", "x", [("a", 30, colors[0]), ("b", 0, colors[1]), ("c", 70, colors[2])])
    drawing = bar_chart("title", "", [bar], 10)
    boxes = [mark for mark in drawing.marks if isinstance(mark, Box)]

    assert [(0, 30), (30, 100)] == [(box.left, box.right) for box in boxes]
    assert "x: c 0.00 ms, 70.0 %" == boxes[1].tip
    assert ["a", "c"] == [entry.name for entry in drawing.legend]


def test_rows_stand_below_each_other() -> None:
    """Heads bold, and the axis as high as all of them."""
    rows = RowLayout(20)
    rows.head("rank 0")
    first, second = rows.row("a"), rows.row("")

    assert first + 20 <= second
    assert ["rank 0", "a"] == [label for _, label in rows.axis().ticks]
    assert {rows.axis().ticks[0][0]} == rows.axis().strong
    assert rows.axis().high == rows.y


def test_gpus_are_named_by_rank() -> None:
    """Those without a step are left out."""
    run = CASES["uneven"]()

    assert ["rank 0", "rank 1", "rank 2"] == rank_labels(run, with_steps(run))
    assert [] == with_steps(CASES["empty"]())
