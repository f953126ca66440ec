"""The Gantt chart among the views."""

from __future__ import annotations

from dptrace.viewers.views.timelines.gantt import VIEW
from tests.support.view_cases import CASES


def test_the_gantt_chart_is_drawn_elsewhere_and_has_the_table_of_the_summary() -> None:
    """It has no drawing of marks; its table is a row for each rank."""
    assert VIEW.draw is None
    assert 2 == len(VIEW.table(CASES["two ranks"]()).rows)
