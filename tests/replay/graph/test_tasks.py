"""Pieces of host time, and what is cut from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import dptrace
from dptrace.replay.graph.tasks import KEPT_NS, WORK, cut_longest, host_pieces, modules_of_tasks
from tests.support.kineto_files import KinetoFile
from tests.support.paths import ROOT
from tests.support.replay_files import write_job_with_modules


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20), st.integers(0, 10**10))
def test_what_is_cut_comes_from_the_longest(lengths: list[int], ns: int) -> None:
    """All that is asked for is cut, as far as 20 µs of each piece remain; no shorter piece loses before a longer."""
    length = np.array(lengths, np.int64)
    cut = cut_longest(length, ns)
    room = np.maximum(length - KEPT_NS, 0)

    assert min(ns, int(room.sum())) == int(cut.sum())
    assert (cut <= room).all()
    assert (cut >= 0).all()
    touched = cut > 0
    assert not touched.any() or (cut[length > length[touched].min()] == room[length > length[touched].min()]).all()


def test_pieces_are_the_calls_and_pauses_of_a_host(run: dptrace.Run) -> None:
    """A job's hosts call for 5 µs each and pause between; the wait for the device is no piece."""
    model = run.replay.model
    pieces = host_pieces(model, model.processes[0])

    assert 10_000 in pieces.length_ns.tolist()
    assert int(pieces.length_ns.max()) < 100_000
    assert (pieces.end_ns >= pieces.start_ns).all()


# The module that each task of a graph belongs to.


def test_a_kernel_is_of_the_same_module_on_all_ranks(tmp_path: Path) -> None:
    """Both ranks' forward kernels are of ``layers.0``."""
    run = dptrace.open(write_job_with_modules(tmp_path), cache=False)
    modules = modules_of_tasks(run.replay.model)
    forward = run.replay.model.graph.names.index("forward")
    tasks = run.replay.model.graph.name == forward

    assert ("layers.0", "layers.1") == modules.names
    assert {0} == set(modules.module[tasks].tolist())


# Which work is equal, on files of a small GPU job and of a CPU.


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
