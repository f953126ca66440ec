"""Size against bandwidth."""

from __future__ import annotations

import numpy as np
import pytest

from dptrace.run.run import Run
from dptrace.viewers.base.marks import Box, Dot, Line
from dptrace.viewers.views.collectives import (
    bandwidth,
    bandwidth_table,
    buckets,
    buckets_table,
    communication,
    communication_table,
)
from tests.support.builders import TimelineBuilder
from tests.support.jobs import late_run
from tests.support.rank_cases import real_ranks
from tests.support.real_traces import needs_real_traces
from tests.support.totals import totals
from tests.support.view_cases import CASES


def test_like_collectives_are_one_dot() -> None:
    """At their size and bus bandwidth."""
    run = CASES["two ranks"]()
    dot = next(mark for mark in bandwidth(run).marks if isinstance(mark, Dot))

    assert dot.x == 4096
    assert dot.y in (run.cross_rank.timing.busbw / 1e9).tolist()
    assert "(2 like it)" in dot.tip


@pytest.mark.heavy
@needs_real_traces
def test_the_line_is_the_fit() -> None:
    """Of the sharded job: the bandwidth that latency and time per byte give, within the sizes that were seen."""
    devices = real_ranks("sharded_h100_8ranks")
    run = Run("x", tuple(device.timeline for device in devices), world_size=8, devices=devices)
    lines = [mark for mark in bandwidth(run).marks if isinstance(mark, Line)]
    fits = [fit for fit in run.cross_rank.fits if fit.alpha_s is not None]

    assert len(fits) == len(lines) == 2
    size, rate = lines[0].points[-1]
    assert (fits[0].busbw(round(size)) or 0) / 1e9 == pytest.approx(rate)
    assert run.cross_rank.matches.bytes.max() >= max(x for line in lines for x, _ in line.points) * 0.999
    assert np.all(np.diff([y for _, y in lines[0].points]) > 0)
    assert 2 == len(bandwidth_table(run).rows)


# How long like collectives took.


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


# Bars of each kind of collective.


def test_a_kind_s_bar_is_its_exposed_and_overlapped_time() -> None:
    """Per rank and step."""
    run = CASES["two ranks"]()
    total = [*map(totals, run.splits)]
    time = sum(one["exposed_comm_ns"] + one["overlapped_comm_ns"] for one in total) / 4

    assert time == pytest.approx(max(mark.right for mark in communication(run).marks if isinstance(mark, Box)))
    assert "4.1 kB" in communication_table(run).rows[0]
    late = late_run(30, 70)
    assert "20.00" == communication_table(late).rows[0][communication_table(late).columns.index("waiting ms")]
    assert any("Waiting for other ranks 20.00 ms" in getattr(mark, "tip", "") for mark in communication(late).marks)
