"""Compute that is slower under communication: measured on kernels that ran both ways, and what a change makes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dptrace
from dptrace.replay.graph.build import build_model
from dptrace.replay.graph.schedule import Times, simulate
from dptrace.replay.simulation import with_times
from dptrace.replay.transforms.interference import ASSUMED, Interference, measure, with_interference
from dptrace.replay.transforms.schedule import Reschedule
from tests.support.kineto_files import KinetoFile
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real


def _job(folder: Path, slowed: int, count: int = 6, grids: tuple[int, int] = (1, 1)) -> dptrace.Run:
    """Write a rank on whose stream a kernel runs alone, 100 µs, and under an all-reduce, *slowed* µs, in turns."""
    file = KinetoFile(0, 1)
    file.label("ProfilerStep#0", 0, 1000 * count)
    for i in range(count):
        at = 1000 * i
        for number, (start, length) in enumerate([(100, 100), (400, slowed)]):
            file.event(
                "cuda_runtime", "cudaLaunchKernel", at + 10 + number, at + 10.5 + number, correlation=3 * i + number + 1
            )
            args = {"grid": [grids[number], 1, 1], "block": [32, 1, 1]}
            file.event(
                "kernel", "gemm", at + start, at + start + length, tid=7, device=0, stream=7,
                correlation=3 * i + number + 1, **args,
            )  # fmt: skip
        file.event("cuda_runtime", "cudaLaunchKernel", at + 380, at + 382, correlation=3 * i + 3)
        name = "ncclDevKernel_AllReduce_Sum_f32"
        file.event("kernel", name, at + 390, at + 700, tid=20, device=0, stream=20, correlation=3 * i + 3)
    file.write(folder / "rank0.json")
    return dptrace.open(folder / "rank0.json", cache=False)


def _measured(run: dptrace.Run) -> Interference:
    return measure(run.replay.model)


@pytest.mark.parametrize(("slowed", "ratio"), [(120, 1.2), (90, 1.0)])
def test_the_factor_is_that_of_kernels_that_ran_both_ways(tmp_path: Path, slowed: int, ratio: float) -> None:
    """Their time under communication over 100 µs without, and 1 at least; of compute only."""
    found = _measured(_job(tmp_path, slowed))

    assert found.factor.ratio == pytest.approx(ratio, rel=0.01)
    assert 6 == found.factor.compared
    assert {1.0, ratio} == set(np.round(found.by_task, 2).tolist())


@pytest.mark.heavy
def test_few_or_unlike_kernels_show_nothing(tmp_path: Path) -> None:
    """Three of a kind, other grids, or a factor that no interference explains: the assumed factor counts."""
    for slowed, count, grids in ((120, 3, (1, 1)), (120, 6, (1, 2)), (400, 6, (1, 1))):
        assert ASSUMED == _measured(_job(tmp_path, slowed, count, grids)).factor


def test_without_a_change_of_overlap_nothing_changes(tmp_path: Path) -> None:
    """Durations under the same communication are those that were given, to the nanosecond."""
    run = _job(tmp_path, 120)
    model, found = run.replay.model, _measured(run)

    same = with_interference(model, run.replay.base.times, model, found)

    assert model.graph.duration_ns.tolist() == same.graph.duration_ns.tolist()


def test_what_leaves_communication_gets_faster(tmp_path: Path) -> None:
    """Without the all-reduces, all kernels take 100 µs."""
    run = _job(tmp_path, 120)
    model, found = build_model(run), _measured(run)
    silent = model.graph.duration_ns.copy()
    gemm = np.flatnonzero(np.array([n == "gemm" for n in model.graph.names])[model.graph.name] & (silent > 0))
    nccl = np.setdiff1d(model.processes[0].interval_tasks, gemm)
    silent[nccl] = 0
    silent[model.transfers.task] = 0
    after = with_interference(model, Times(model.graph.start_ns, model.graph.end_ns), with_times(model, silent), found)

    assert np.abs(after.graph.duration_ns[gemm] - 100_000).max() <= 1


@pytest.mark.heavy
def test_what_moves_under_communication_gets_slower() -> None:
    """Naive has no overlap: with messages under backward, that takes longer; the range contains that it does not."""
    run = dptrace.open(ROOT / "traces" / "naive_cpu_2ranks")
    answer = run.whatif(schedule="interleaved")
    after = Reschedule("interleaved").apply(run.replay.model)
    free = (simulate(after.graph).end_ns.max() - run.replay.base.times.end_ns.max()) / 4

    assert answer.predicted["backward_ns"] > answer.measured["backward_ns"]
    assert answer.low_ns < answer.measured_step_ns + free < answer.predicted_step_ns
    assert 0 == answer.to_dict()["interference"]["compared"]
    assert any("1.13" in note for note in answer.notes)
    assert run.whatif(compute=2).interference is None


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize(("name", "ratio"), [("ddp_a100_rank0of2", 1.08), ("straggler_v100_4ranks", 1.07)])
def test_real_kernels_are_slower_under_communication(name: str, ratio: float) -> None:
    """A few percent, on kernels with the same grid, block and shapes."""
    assert _measured(dptrace.open(real(name))).factor.ratio == pytest.approx(ratio, abs=0.01)
