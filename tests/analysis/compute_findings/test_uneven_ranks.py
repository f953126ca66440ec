"""A GPU that takes longer for the same kernels than the others is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.analysis.compute_findings.uneven_ranks import uneven_ranks
from tests.support.compute_files import ComputeFile, context_of


def rank(number: int, factor: float, steps: int = 2) -> ComputeFile:
    file = ComputeFile(number, 3)
    for _ in range(steps):
        file.step().kernel("aten::mm", "gemm", 100 * factor).kernel("aten::add", "add", 50 * factor)
    return file


def test_the_slow_gpu_is_named(tmp_path: Path) -> None:
    """20 % of 150 µs per step; the cost is the mean over the three GPUs, and steps may be of different number."""
    (found,) = uneven_ranks(context_of(tmp_path, rank(0, 1), rank(1, 1.2, steps=3), rank(2, 1)))

    assert {"rank": 1, "ratio": 1.2, "kernel": "gemm"} == found.evidence
    assert 30_000 == pytest.approx(found.cost_ns, abs=1)


def test_gpus_that_differ_by_little_or_do_different_work_are_no_finding(tmp_path: Path) -> None:
    """Nor is one GPU alone."""
    other = rank(1, 1.2)
    other.kernel("aten::mm", "gemm", 100).kernel("aten::add", "add", 50)

    assert [] == uneven_ranks(context_of(tmp_path, rank(0, 1), rank(1, 1.02)))
    assert [] == uneven_ranks(context_of(tmp_path, rank(0, 1), other))
    assert [] == uneven_ranks(context_of(tmp_path, rank(0, 1)))
