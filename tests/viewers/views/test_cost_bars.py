"""Bars of idle time and findings."""

from __future__ import annotations

import pytest

from dptrace.viewers.base.marks import Box
from dptrace.viewers.views.steps import findings, findings_table, idle, idle_table
from tests.support.view_cases import CASES


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
    costs = [finding.cost_ns for finding in run.cross_rank.findings]

    assert costs
    assert sorted(costs, reverse=True) == lengths(findings(run).marks)
    names = [name for _, name in findings(run).y.ticks]
    assert len(names) == len(costs)
    for name, finding in zip(names, run.cross_rank.findings, strict=True):
        assert f"rank {finding.evidence['rank']}" in name
        assert finding.kind != "exposed_comm" or name.startswith(f"exposed {finding.evidence['collective']} · ")
    assert [finding.advice for finding in run.cross_rank.findings] == [row[3] for row in findings_table(run).rows]


def test_where_there_is_nothing_it_is_said() -> None:
    """No idle time, no finding."""
    assert "No GPU was idle" in idle(CASES["no time"]()).message
    assert "No finding" in findings(CASES["no time"]()).message
