"""Kernels that ran with and without communication show how much it slows compute."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.analysis.compute_findings.interference import interference
from tests.support.compute_files import ComputeFile, context_of


def job(under: float, alone: tuple[float, ...] = (50, 50)) -> ComputeFile:
    """Four steps, each with kernels of the same work without communication, and one under it."""
    file = ComputeFile()
    for _ in range(4):
        file.step()
        for length in alone:
            file.kernel("aten::mm", "gemm", length)
        file.kernel("aten::mm", "gemm", under).communication(file.now - under - 1, file.now + 1)
    return file


def test_the_ratio_and_what_it_costs(tmp_path: Path) -> None:
    """80 µs under communication instead of 50."""
    (found,) = interference(context_of(tmp_path, job(80)))

    assert 1.6 == pytest.approx(found.evidence["ratio"], abs=0.01)
    assert 30_000 == pytest.approx(found.cost_ns, abs=10)


def test_kernels_of_unequal_work_are_not_compared(tmp_path: Path) -> None:
    """Their times differ without any communication."""
    assert [] == interference(context_of(tmp_path, job(80, (20, 50, 90))))
