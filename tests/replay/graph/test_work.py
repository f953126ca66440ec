"""Which work is equal, on files of a small GPU job and of a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import dptrace
from dptrace.replay.graph.work import WORK
from tests.support.kineto_files import KinetoFile
from tests.support.paths import ROOT


def test_work_is_a_kernel_with_its_grid_and_the_shapes_of_its_operator(tmp_path: Path) -> None:
    """Four kernels of one name: only those with equal grid, block and shapes are equal, in all files."""
    path = _written(tmp_path / "rank0.json")
    run = dptrace.open(path, cache=False)
    work = run.read_again(run.timelines[0], WORK)
    again = dptrace.open(_written(tmp_path / "other.json"), cache=False)
    other = again.read_again(again.timelines[0], WORK)

    assert work is not None
    assert other is not None
    first, same, other_grid, other_shape = work.interval.tolist()
    assert first == same
    assert 3 == len({first, other_grid, other_shape})
    assert work.interval.tolist() == other.interval.tolist()


def _written(path: Path) -> Path:
    file = KinetoFile(0, 1)
    file.label("ProfilerStep#0", 0, 400)
    for i, (grid, shape) in enumerate([(1, 8), (1, 8), (2, 8), (1, 16)]):
        at = 10 + 50 * i
        inputs: dict[str, Any] = {"Input Dims": [[shape, shape]], "Input type": ["float"]}
        file.event("cpu_op", "aten::mm", at, at + 20, **inputs)
        file.event("cuda_runtime", "cudaLaunchKernel", at + 5, at + 8, correlation=i + 1)
        args = {"grid": [grid, 1, 1], "block": [32, 1, 1]}
        file.event("kernel", "gemm", at + 20, at + 40, tid=7, device=0, stream=7, correlation=i + 1, **args)
    file.write(path)
    return path


def test_operators_of_a_cpu_are_equal_by_shape() -> None:
    """Five linear layers of different shapes, in four steps."""
    run = dptrace.open(ROOT / "traces" / "single_cpu")
    work = run.read_again(run.timelines[0], WORK)

    assert work is not None
    linear = work.operator[work.name == work.names.index("aten::linear")]
    assert [4] * 5 == np.unique(linear, return_counts=True)[1].tolist()
