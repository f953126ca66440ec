"""The findings of a run, most expensive first, and none below one percent of a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from dptrace.analysis.compute_findings.detect import (
    compute_findings,
    interference,
    pageable_copies,
    recompute,
    short_kernels,
    uneven_ranks,
)
from dptrace.load.open import open_run
from dptrace.load.options import ReadOptions
from dptrace.run.kernels import operator_calls_of
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.timeline.model import Phase
from tests.support.compute_files import ComputeFile, context_of, inputs
from tests.support.kineto_files import KinetoFile
from tests.support.real_traces import needs_real_traces, real

SAME = inputs([1024, 1024], [1024, 1024])


def test_the_most_expensive_comes_first(tmp_path: Path) -> None:
    """A copy of 200 µs, and a chain that costs 60; short kernels that cost 4 of 1,000 are no finding."""
    file = ComputeFile(step_us=1000).step().copy("Memcpy DtoH (Device -> Pageable)", 200)
    for _ in range(3):
        file.kernel("aten::add", "vectorized_add", 30, **SAME)
    file.kernel("aten::mm", "gemm", 20).kernel("aten::mm", "a", 3).kernel("aten::mm", "b", 3, idle=4)
    file.kernel("aten::mm", "gemm", 400)
    context = context_of(tmp_path, file)

    assert [("pageable_copies", 200_000), ("elementwise_chains", 60_000)] == [
        (finding.kind, finding.counted_ns) for finding in compute_findings(context.timelines, context.calls)
    ]


def test_without_calls_or_steps_there_are_fewer_findings(tmp_path: Path) -> None:
    """What needs shapes is not found; a run without steps has none."""
    file = ComputeFile().step().copy("Memcpy DtoH (Device -> Pageable)", 200)
    for _ in range(3):
        file.kernel("aten::add", "vectorized_add", 30, **SAME)
    timelines = context_of(tmp_path, file).timelines

    assert ["pageable_copies"] == [finding.kind for finding in compute_findings(timelines, (OperatorCalls(),))]
    assert () == compute_findings((), ())


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("compute/h100_qwen_0.5b", ["elementwise_chains", "slow_attention", "short_kernels"]),
        ("compute/h100_bert_small", ["short_kernels", "small_products"]),
        ("ddp_mi300_rank0of8", ["slow_convolutions", "recompute", "elementwise_chains"]),
    ],
)
def test_findings_of_real_runs(name: str, kinds: list[str]) -> None:
    """Eager inference, a batch that is too small, and a small network with checkpointing."""
    run = open_run([str(real(name))], ReadOptions(operators=True))
    calls = [operator_calls_of(run, timeline) for timeline in run.timelines]

    assert kinds == [finding.kind for finding in compute_findings(run.timelines, calls)]


# Copies from pageable memory that no compute hides are found.


PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def test_pageable_copies_that_no_compute_hides_count(tmp_path: Path) -> None:
    """20 µs of them, not the pinned one; or 5, where 15 run beside a kernel on another stream."""
    file = ComputeFile().step().copy(PAGEABLE, 20).copy("Memcpy HtoD (Pinned -> Device)", 30)
    (found,) = pageable_copies(context_of(tmp_path, file.kernel("aten::mm", "gemm", 50)))
    file = ComputeFile().step().copy(PAGEABLE, 20)
    file.file.kernel("gemm", file.now - 15, file.now + 5, 3, stream=9)
    (beside,) = pageable_copies(context_of(tmp_path, file))

    assert ("pageable_copies", 20_000, [PAGEABLE]) == (found.kind, found.counted_ns, found.evidence.to_dict()["copies"])
    assert 5_000 == beside.counted_ns


# Kernels that ran with and without communication show how much it slows compute.


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

    assert 1.6 == pytest.approx(found.evidence.to_dict()["ratio"], abs=0.01)
    assert 30_000 == pytest.approx(found.counted_ns, abs=10)


def test_kernels_of_unequal_work_are_not_compared(tmp_path: Path) -> None:
    """Their times differ without any communication."""
    assert [] == interference(context_of(tmp_path, job(80, (20, 50, 90))))


# Forward work that backward repeats has its price.


def test_repeated_work_costs_its_time(tmp_path: Path) -> None:
    """40 of 100 µs in backward; without any, there is no finding."""
    context = context_of(tmp_path, ComputeFile().step().kernel("aten::mm", "gemm", 40).kernel("aten::mm", "gemm", 60))
    (timeline,) = context.timelines
    backward = replace(timeline, phase=np.full(2, Phase.BACKWARD, np.uint8))
    again = replace(backward, recompute=np.array([True, False]))
    (found,) = recompute(replace(context, timelines=(again,)))

    assert ("recompute", 40_000) == (found.kind, found.counted_ns)
    assert [] == recompute(replace(context, timelines=(backward,)))


# Idle time between kernels that are shorter than their launch is found.


def test_idle_time_between_two_short_kernels_counts(tmp_path: Path) -> None:
    """Not before a long kernel, after one, where the gap is longer than any launch, nor where communication runs."""
    file = ComputeFile().step().kernel("aten::add", "a", 3)
    file.kernel("aten::add", "b", 4, idle=7).kernel("aten::add", "long", 50, idle=5)
    file.kernel("aten::add", "c", 4, idle=9).kernel("aten::add", "d", 4, idle=150)
    (found,) = short_kernels(context_of(tmp_path, file))
    filled = ComputeFile().step().kernel("aten::add", "a", 3).kernel("aten::add", "b", 4, idle=7)

    assert ("short_kernels", 7_000) == (found.kind, found.counted_ns)
    assert [] == short_kernels(context_of(tmp_path, filled.communication(101, 112)))


# A GPU that takes longer for the same kernels than the others is found.


def rank(number: int, factor: float, steps: int = 2) -> ComputeFile:
    file = ComputeFile(number, 3)
    for _ in range(steps):
        file.step().kernel("aten::mm", "gemm", 100 * factor).kernel("aten::add", "add", 50 * factor)
    return file


def test_the_slow_gpu_is_named(tmp_path: Path) -> None:
    """20 % of 150 µs per step; the cost is the mean over the three GPUs, and steps may be of different number."""
    (found,) = uneven_ranks(context_of(tmp_path, rank(0, 1), rank(1, 1.2, steps=3), rank(2, 1)))

    assert {"rank": 1, "ratio": 1.2, "kernel": "gemm"} == found.evidence.to_dict()
    assert 30_000 == pytest.approx(found.counted_ns, abs=1)


def test_gpus_that_differ_by_little_or_do_different_work_are_no_finding(tmp_path: Path) -> None:
    """Nor is one GPU alone."""
    other = rank(1, 1.2)
    other.kernel("aten::mm", "gemm", 100).kernel("aten::add", "add", 50)

    assert [] == uneven_ranks(context_of(tmp_path, rank(0, 1), rank(1, 1.02)))
    assert [] == uneven_ranks(context_of(tmp_path, rank(0, 1), other))
    assert [] == uneven_ranks(context_of(tmp_path, rank(0, 1)))


# The kernels of steps have what identifies equal work on all devices.


def context_rank(number: int) -> ComputeFile:
    product = inputs([64, 32], [32, 16])
    return ComputeFile(number, 2).step().kernel("aten::mm", "gemm", 10, **product).kernel("aten::relu", "relu", 5)


def test_equal_work_has_one_entry_on_all_devices(tmp_path: Path) -> None:
    """With its cost where shapes are recorded; calls are numbered apart."""
    kernels = context_of(tmp_path, context_rank(0), context_rank(1)).kernels

    assert [("gemm", "aten::mm"), ("relu", "aten::relu")] == [(work.kernel, work.operator) for work in kernels.work]
    assert [65_536, None] == [work.cost.flops if work.cost else None for work in kernels.work]
    assert [0, 1, 0, 1] == kernels.index.tolist()
    assert [0, 0, 1, 1] == kernels.device.tolist()
    assert 4 == len(set(kernels.call.tolist()))
    assert [10_000, 5_000] * 2 == kernels.ns.tolist()


def test_work_outside_steps_and_on_cpus_is_left_out(tmp_path: Path) -> None:
    """Operators on a CPU contain each other."""
    late = context_rank(0)
    late.file.kernel("warm-up", 5000, 5010, 4990)
    cpu = ComputeFile()
    cpu.file = KinetoFile()
    cpu.file.label("ProfilerStep#0", 0, 100).op("aten::mm", 10, 90)

    assert 2 == len(context_of(tmp_path, late).kernels)
    assert 0 == len(context_of(tmp_path, cpu).kernels)
