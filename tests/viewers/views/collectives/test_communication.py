"""Bars of each kind of collective."""

from __future__ import annotations

import pytest

from dptrace.viewers.base.marks import Box
from dptrace.viewers.views.collectives.communication import communication, communication_table
from tests.support.jobs import late_run
from tests.support.view_cases import CASES


def test_a_kind_s_bar_is_its_exposed_and_overlapped_time() -> None:
    """Per rank and step."""
    run = CASES["two ranks"]()
    total = [split.total() for split in run.splits]
    time = sum(one["exposed_comm_ns"] + one["overlapped_comm_ns"] for one in total) / 4

    assert time == pytest.approx(max(mark.right for mark in communication(run).marks if isinstance(mark, Box)))
    assert 1 == len(communication(run).y.ticks)
    assert "4.1 kB" in communication_table(run).rows[0]


def test_each_kind_of_communication_is_divided() -> None:
    """Mean per rank and step, as a picture and a table."""
    run = late_run(30, 70)
    tips = [mark.tip for mark in communication(run).marks if isinstance(mark, Box)]
    cells = communication_table(run)

    assert any(tip.startswith("all_reduce: Waiting for other ranks 20.00 ms") for tip in tips)
    assert "20.00" == cells.rows[0][cells.columns.index("waiting ms")]


def test_a_run_without_communication_says_so() -> None:
    """In the picture and in the table."""
    assert "has no communication" in communication(CASES["no communication"]()).message
    assert "has no communication" in communication_table(CASES["no communication"]()).note
