"""Helpers for views of bars."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from dptrace.analysis.memory.usage import total_bytes
from dptrace.run.memory import device_reports
from dptrace.viewers.base import theme
from dptrace.viewers.base.charts import (
    Bar,
    RowLayout,
    bar_chart,
    rank_labels,
    sample_levels,
    share,
    span_of,
    with_steps,
)
from dptrace.viewers.base.marks import Box
from tests.support.kineto_files import BASE_NS
from tests.support.memory_files import GOLDEN, memory_run
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


# Memory reduced to columns of a picture.


@pytest.mark.parametrize("columns", [1, 7, 200, 5000])
def test_no_peak_is_lost_between_columns(columns: int) -> None:
    """However few columns there are, the highest of them is the peak."""
    [report] = device_reports(dptrace.open(GOLDEN))
    total = total_bytes(report.device)

    found = sample_levels(report.device, *span_of(report), columns)

    assert report.peak.bytes == int(total[found.level].max())
    assert columns == len(found.level) == len(found.edges) - 1


def test_a_column_without_events_shows_what_was_there(tmp_path: Path) -> None:
    """From 13 µs on 40 bytes are held, and nothing happens between 16 and 40 µs."""
    [report] = device_reports(dptrace.open(memory_run(tmp_path, ranks=1)))
    found = sample_levels(report.device, BASE_NS + 20_000, BASE_NS + 30_000, 2)

    assert [1040, 1040] == total_bytes(report.device)[found.level].tolist()


def test_the_span_is_that_of_the_selected_steps(tmp_path: Path) -> None:
    """Both steps last 100 µs each."""
    run = dptrace.open(memory_run(tmp_path, ranks=1))

    assert [(BASE_NS, BASE_NS + 200_000)] == [span_of(report) for report in device_reports(run)]
    [second] = device_reports(run.select(steps=(1, 1)))
    assert BASE_NS + 200_000 == span_of(second)[1]
