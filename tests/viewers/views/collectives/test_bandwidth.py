"""Size against bandwidth."""

from __future__ import annotations

import numpy as np
import pytest

from dptrace.viewers.base.marks import Dot, Line
from dptrace.viewers.views.collectives.bandwidth import bandwidth, bandwidth_table
from tests.support.rank_cases import real_ranks
from tests.support.real_traces import needs_real_traces
from tests.support.view_cases import CASES


def test_dots_are_the_busbw_of_the_collectives() -> None:
    """At their sizes, in GB/s; those that lie on each other are one dot that says so."""
    run = CASES["two ranks"]()
    dots = [mark for mark in bandwidth(run).marks if isinstance(mark, Dot)]
    rates = run.cross_rank.timing.busbw / 1e9

    assert {4096.0} == {dot.x for dot in dots}
    assert {dot.y for dot in dots} <= set(rates.tolist())
    assert "(2 like it)" in dots[0].tip


def test_with_ranks_missing_no_bandwidth_is_drawn() -> None:
    """The transfer time, and so the bandwidth, is unknown: the ranks that are here may have waited for others."""
    drawing = bandwidth(CASES["one rank"]())

    assert "a known transfer time" in drawing.message
    assert not drawing.marks


def test_where_there_is_nothing_it_is_said() -> None:
    """No communication, or none whose size is known."""
    assert "has no communication" in bandwidth(CASES["no communication"]()).message
    assert "a known size and a known transfer time" in bandwidth(CASES["unsized"]()).message
    assert "known bytes" in bandwidth_table(CASES["unsized"]()).rows[0][-1]


@needs_real_traces
def test_the_line_is_the_fit() -> None:
    """Of the sharded job: the bandwidth that latency and time per byte give, within the sizes that were seen."""
    from dptrace.run.run import Run

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
