"""Copies from pageable memory that no compute hides are found."""

from __future__ import annotations

from pathlib import Path

from dptrace.analysis.compute_findings.copies import pageable_copies
from tests.support.compute_files import ComputeFile, context_of

PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def test_only_pageable_copies_count(tmp_path: Path) -> None:
    """20 µs of them, not the pinned one."""
    file = ComputeFile().step().copy(PAGEABLE, 20).copy("Memcpy HtoD (Pinned -> Device)", 30)
    (found,) = pageable_copies(context_of(tmp_path, file.kernel("aten::mm", "gemm", 50)))

    assert ("pageable_copies", 20_000, [PAGEABLE]) == (found.kind, found.cost_ns, found.evidence["copies"])


def test_what_compute_hides_costs_nothing(tmp_path: Path) -> None:
    """15 of 20 µs run beside a kernel on another stream."""
    file = ComputeFile().step().copy(PAGEABLE, 20)
    file.file.kernel("gemm", file.now - 15, file.now + 5, 3, stream=9)
    (found,) = pageable_copies(context_of(tmp_path, file))

    assert 5_000 == found.cost_ns
