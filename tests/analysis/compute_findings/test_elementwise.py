"""Chains of elementwise kernels on one stream are found, with what fusing them would save."""

from __future__ import annotations

from pathlib import Path

from dptrace.analysis.compute_findings.elementwise import elementwise_chains
from tests.support.compute_files import ComputeFile, context_of, inputs

SAME = inputs([1024, 1024], [1024, 1024])
SMALL = inputs([8, 8], [8, 8])


def chain(file: ComputeFile, *lengths: float) -> ComputeFile:
    for length in lengths:
        file.kernel("aten::add", "vectorized_add", length, **SAME)
    return file


def test_a_chain_costs_all_but_its_longest_kernel(tmp_path: Path) -> None:
    """Two steps with 10 + 20 + 30 µs each: one kernel of 30 µs would do."""
    file = ComputeFile()
    for _ in range(2):
        chain(file.step(), 10, 20, 30).kernel("aten::mm", "gemm", 50, **inputs([64, 64], [64, 64]))
    (found,) = elementwise_chains(context_of(tmp_path, file))

    assert ("elementwise_chains", 30_000) == (found.kind, found.cost_ns)
    assert "add → add → add" == found.evidence["chain"]


def test_a_product_or_another_size_ends_a_chain(tmp_path: Path) -> None:
    """Two neighbours are no chain."""
    file = chain(chain(ComputeFile().step(), 10, 20).kernel("aten::mm", "gemm", 50), 10, 20)
    other = chain(chain(ComputeFile().step(), 10, 20).kernel("aten::add", "small", 5, **SMALL), 10, 20)

    assert [] == elementwise_chains(context_of(tmp_path, file))
    assert [] == elementwise_chains(context_of(tmp_path, other))


def test_the_costliest_chain_is_named(tmp_path: Path) -> None:
    """Of two patterns, the one that costs more in all its places."""
    file = chain(ComputeFile().step(), 10, 10, 30).kernel("aten::mm", "gemm", 50)
    for name in ("aten::mul", "aten::exp", "aten::mul", "aten::neg"):
        file.kernel(name, "vectorized", 40, **SAME)
    (found,) = elementwise_chains(context_of(tmp_path, file))

    assert 20_000 + 120_000 == found.cost_ns
    assert "mul → exp → mul → neg" == found.evidence["chain"]


def test_chains_of_the_optimizer_have_advice_of_their_own(tmp_path: Path) -> None:
    """They are launched within its step."""
    file = ComputeFile().step()
    file.file.label("Optimizer.step#SGD.step", 0.5, 50)
    (found,) = elementwise_chains(context_of(tmp_path, chain(file, 10, 10, 10)))

    assert ("unfused_optimizer", 20_000) == (found.kind, found.cost_ns)
