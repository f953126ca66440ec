"""How long like collectives took."""

from __future__ import annotations

from dptrace.run.run import Run
from dptrace.viewers.base.marks import Dot, Line
from dptrace.viewers.views.collectives.buckets import buckets, buckets_table
from tests.support.builders import TimelineBuilder
from tests.support.view_cases import CASES


def with_a_slow_one() -> Run:
    """Two ranks of eight like all-reduces, one of which takes thrice as long."""
    made = []
    for rank in range(2):
        builder = TimelineBuilder(rank, bounds=(0, 9_000_000))
        for i in range(8):
            length = 1_500_000 if i == 5 else 500_000 + 20_000 * i
            at = i * 600_000 + (1_000_000 if i > 5 else 0)
            builder.compute(at, at + 1_000).all_reduce(at, at + length)
        made.append(builder.build())
    return Run("runs/slow", tuple(made), world_size=2)


def test_a_row_for_each_and_slow_ones_stand_out() -> None:
    """By colour and by shape; the line is the median."""
    run = with_a_slow_one()
    told = buckets(run)
    dots = [mark for mark in told.marks if isinstance(mark, Dot)]
    (line,) = [mark for mark in told.marks if isinstance(mark, Line)]

    assert [1_500_000] == [dot.x for dot in dots if dot.shape == "diamond"]
    assert 8 == len(dots)
    assert line.points[0][0] == run.cross_rank.latencies[0].quantile(0.5)
    assert "slow" in told.legend[1].name
    assert "1" == buckets_table(run).rows[0][-1]


def test_where_there_is_nothing_it_is_said() -> None:
    """No communication, or not all ranks of any collective."""
    assert "has no communication" in buckets(CASES["no communication"]()).message
    assert "No collective has all of its ranks here" in buckets(CASES["one rank"]()).message
    assert "No collective has all of its ranks here" in buckets_table(CASES["one rank"]()).note
