"""Idle time between kernels that are shorter than their launch is found."""

from __future__ import annotations

from pathlib import Path

from dptrace.analysis.compute_findings.short_kernels import short_kernels
from tests.support.compute_files import ComputeFile, context_of


def test_idle_time_between_two_short_kernels_counts(tmp_path: Path) -> None:
    """Not before a long kernel, after one, or where the gap is longer than any launch."""
    file = ComputeFile().step().kernel("aten::add", "a", 3)
    file.kernel("aten::add", "b", 4, idle=7).kernel("aten::add", "long", 50, idle=5)
    file.kernel("aten::add", "c", 4, idle=9).kernel("aten::add", "d", 4, idle=150)
    (found,) = short_kernels(context_of(tmp_path, file))

    assert ("short_kernels", 7_000) == (found.kind, found.cost_ns)


def test_a_gap_that_another_stream_fills_is_no_idle_time(tmp_path: Path) -> None:
    """Communication runs meanwhile."""
    file = ComputeFile().step().kernel("aten::add", "a", 3).kernel("aten::add", "b", 4, idle=7)

    assert [] == short_kernels(context_of(tmp_path, file.communication(101, 112)))
