"""Costs are means per step and GPU."""

from __future__ import annotations

from pathlib import Path

from tests.support.compute_files import ComputeFile, context_of


def test_a_cost_is_the_mean_over_steps_and_gpus(tmp_path: Path) -> None:
    """Two ranks of two steps each."""
    files = [ComputeFile(rank, 2) for rank in (0, 1)]
    for file in files:
        for _ in range(2):
            file.step().kernel("aten::mm", "gemm", 900)
    context = context_of(tmp_path, *files)
    finding = context.finding("kind", "text", "advice", 40_000)

    assert 4 == context.steps
    assert (10_000, 10_000 / context.wall_ns) == (finding.cost_ns, finding.share)
