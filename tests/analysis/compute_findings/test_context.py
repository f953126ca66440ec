"""Costs are means per step and GPU."""

from __future__ import annotations

from pathlib import Path

from tests.support.compute_files import ComputeFile, context_of, inputs
from tests.support.kineto_files import KinetoFile

# The kernels of steps have what identifies equal work on all devices.


def rank(number: int) -> ComputeFile:
    product = inputs([64, 32], [32, 16])
    return ComputeFile(number, 2).step().kernel("aten::mm", "gemm", 10, **product).kernel("aten::relu", "relu", 5)


def test_equal_work_has_one_entry_on_all_devices(tmp_path: Path) -> None:
    """With its cost where shapes are recorded; calls are numbered apart."""
    kernels = context_of(tmp_path, rank(0), rank(1)).kernels

    assert [("gemm", "aten::mm"), ("relu", "aten::relu")] == [(work.kernel, work.operator) for work in kernels.work]
    assert [65_536, None] == [work.cost.flops if work.cost else None for work in kernels.work]
    assert [0, 1, 0, 1] == kernels.index.tolist()
    assert [0, 0, 1, 1] == kernels.device.tolist()
    assert 4 == len(set(kernels.call.tolist()))
    assert [10_000, 5_000] * 2 == kernels.ns.tolist()


def test_work_outside_steps_and_on_cpus_is_left_out(tmp_path: Path) -> None:
    """Operators on a CPU contain each other."""
    late = rank(0)
    late.file.kernel("warm-up", 5000, 5010, 4990)
    cpu = ComputeFile()
    cpu.file = KinetoFile()
    cpu.file.label("ProfilerStep#0", 0, 100).op("aten::mm", 10, 90)

    assert 2 == len(context_of(tmp_path, late).kernels)
    assert 0 == len(context_of(tmp_path, cpu).kernels)
