"""The chart of all-reduces by size."""

from __future__ import annotations

import pytest

from dptrace.model.training.communication import Link, Network, message_costs
from dptrace.viewers.base.marks import Dot, Line
from dptrace.viewers.planning.message_chart import message_chart


def test_lines_cross_where_the_ring_overtakes() -> None:
    """A line and a dot for each algorithm, and a ring on the ring's line where the tree takes as long."""
    link = Link("link", 5e-6, 25e9)
    content = message_costs(Network(link, link, 8), 208e6, 4, 0.0)
    drawing = message_chart(content)
    lines = [mark for mark in drawing.marks if isinstance(mark, Line)]
    dots = [mark for mark in drawing.marks if isinstance(mark, Dot)]
    (crossing,) = [dot for dot in dots if dot.hollow]

    assert len(content["all_reduce"]) == len(lines) == len(dots) - 1
    assert pytest.approx(100e3) == crossing.x
    assert pytest.approx(1e9 * (6 * 5e-6 + 1.5 * 100e3 / 25e9)) == crossing.y
    assert [pytest.approx(1e9 * row["seconds"]) for row in content["all_reduce"]] == [
        dot.y for dot in dots if not dot.hollow
    ]
    for line in lines:
        assert all(
            min(drawing.y.low, drawing.y.high) <= y <= max(drawing.y.low, drawing.y.high) for _, y in line.points
        )
