"""Figures of each kind of collective."""

from __future__ import annotations

import pytest

from dptrace.analysis.per_gpu.split import by_kind
from dptrace.run.run import Run
from tests.support.builders import TimelineBuilder, two_rank_timelines


def test_a_kind_is_reported_per_gpu_and_step() -> None:
    """Counts, bytes and times add up to the splits' when multiplied by GPUs and steps."""
    run = Run("x", two_rank_timelines())
    (kind,) = by_kind(run.splits)
    total = [split.total() for split in run.splits]

    assert ("all_reduce", 1.0, 4096.0) == (kind.kind, kind.count, kind.bytes)
    assert sum(one["exposed_comm_ns"] for one in total) == 4 * kind.exposed_ns
    assert sum(one["overlapped_comm_ns"] for one in total) == 4 * kind.overlapped_ns
    assert kind.overlap_percent == pytest.approx(100 * kind.overlapped_ns / (kind.overlapped_ns + kind.exposed_ns))


def test_without_communication_there_is_none() -> None:
    """Without communication, or without GPUs, the result is empty."""
    assert () == by_kind([])
    assert () == by_kind(Run("x", (TimelineBuilder().compute(0, 9).build(),)).splits)
