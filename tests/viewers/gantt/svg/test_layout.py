"""The layout of a static Gantt chart."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dptrace.run.run import Run
from dptrace.timeline.model import Windows
from dptrace.viewers.gantt.chart import Role, chart
from dptrace.viewers.gantt.svg.layout import RIGHT, WIDTH, svg_layout
from tests.support.builders import two_rank_timelines
from tests.support.view_cases import CASES, many_ranks


@pytest.mark.parametrize(("ranks", "rows"), [(2, 3), (12, 2), (64, 1)])
def test_many_gpus_have_fewer_rows_each(ranks: int, rows: int) -> None:
    """Rows do not overlap, and are between top and bottom."""
    where = svg_layout(chart(many_ranks(ranks)), 100)

    assert ranks * rows == len(where.rows)
    edges = [100.0, *(edge for row in where.rows for edge in (row.y, row.y + row.height)), where.bottom]
    assert sorted(edges) == edges


def test_time_runs_from_left_to_right() -> None:
    """Within the margins; times outside the chart are at its edges."""
    gantt_chart = chart(CASES["two ranks"]())
    where = svg_layout(gantt_chart, 100)

    assert where.left == where.x(0) == where.x(-5)
    assert where.x(gantt_chart.end_ns) == pytest.approx(WIDTH - RIGHT, abs=1)
    assert where.x(2 * gantt_chart.end_ns) == where.x(gantt_chart.end_ns)


def test_a_row_that_no_gpu_fills_is_left_out() -> None:
    """A single GPU has no communication row."""
    where = svg_layout(chart(CASES["no communication"]()), 100)

    assert {Role.PHASES, Role.COMPUTE} == {row.role for row in where.rows}
    assert where.lane(0, Role.PHASES) is not None
    assert where.lane(7, Role.PHASES) is None


def test_steps_are_named_once() -> None:
    """By the first GPU of those whose steps differ, and beside them by one whose steps are at other times."""
    one, two = two_rank_timelines()
    length = int(one.windows.bounds[-1] - one.windows.bounds[0])
    shifted, later = (
        replace(two, windows=Windows(two.windows.names, two.windows.bounds + by)) for by in (length // 3, 2 * length)
    )
    where = svg_layout(chart(Run("", (one, shifted, later))), 100)

    assert [0, 2] == [number for _, number in where.strips]
    assert 1 == len({top for top, _ in where.strips})
    assert {0, 1, 2} == {row.track for row in where.rows}
