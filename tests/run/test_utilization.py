"""MFU, HFU, samples and tokens per second of a run's steps."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dptrace.core.gpu import GpuProperties
from dptrace.run.columns import UTILIZATION
from dptrace.run.run import Run
from dptrace.run.utilization import Utilization, Workload, utilization_of
from tests.support.builders import two_rank_timelines

H100 = GpuProperties("NVIDIA H100 80GB HBM3", 132, (9, 0), 32)


def job(flops: Any, gpu: GpuProperties | None = H100, **options: Any) -> Run:
    """Return two ranks of two steps of 100 µs, with what run.json says of them."""
    timelines = tuple(replace(timeline, gpu=gpu) for timeline in two_rank_timelines())
    ranks = [{"rank": rank, "flops": flops} for rank in (0, 1)]
    return Run("job", timelines, {"ranks": ranks, "options": options}, world_size=2)


def computed(run: Run, workload: Workload | None = None) -> Utilization:
    return utilization_of(run.devices, run.metadata, run.world_size, workload)


def test_mfu_is_model_flops_over_time_and_peak() -> None:
    """49.47 GFLOP in 100 µs are 494.7 TFLOP/s, half of an H100's 989.4; HFU counts what was recomputed."""
    flops = {"model": 49_470_000_000, "hardware": 59_364_000_000, "dtype": "bf16"}

    found = computed(job(flops, batch_size=32, tokens_per_sample=1024))

    assert pytest.approx((0.5, 0.6, 494.7)) == (found.mfu, found.hfu, found.tflops)
    assert pytest.approx((32 / 1e-4, 32 * 1024 / 1e-4)) == (found.samples_per_s, found.tokens_per_s)
    assert ("H100 SXM", "bf16", 989.4, "") == (found.gpu, found.dtype, found.peak_tflops, found.note)
    assert [(0, "ProfilerStep#0"), (0, "ProfilerStep#1"), (1, "ProfilerStep#0"), (1, "ProfilerStep#1")] == [
        (step.rank, step.step) for step in found.steps
    ]
    assert [column.name for column in UTILIZATION] == list(found.steps[0].to_dict())


def test_a_timed_step_has_its_own_rate() -> None:
    """The same FLOPs in half the time that the recorded step took."""
    found = computed(job({"model": 49_470_000_000, "hardware": 49_470_000_000, "dtype": "bf16"}))

    assert pytest.approx((989.4, 1.0)) == found.of_wall(5e-5)
    assert (None, None) == computed(job(None)).of_wall(1.0)


def test_parameters_and_tokens_stand_in_for_a_count() -> None:
    """6 · 1e6 · 8,000 FLOPs are shared by two ranks: 24 GFLOP each in 100 µs, without HFU."""
    found = computed(job(None), Workload(parameters=1e6, tokens=8000, peak_tflops=480))

    assert pytest.approx((240.0, 0.5)) == (found.tflops, found.mfu)
    assert (None, "", 480) == (found.hfu, found.gpu, found.peak_tflops)


def test_more_than_the_peak_is_doubted() -> None:
    """The note says which options to check; at the peak itself there is none."""
    doubted = computed(job(None), Workload(parameters=7e9, tokens=1e30, peak_tflops=480)).note

    assert all(option in doubted for option in ("--params", "--tokens", "--peak-tflops"))
    assert "run.json" in computed(job({"model": 98.95e9, "dtype": "bf16"})).note
    assert not computed(job({"model": 98.93e9, "dtype": "bf16"})).note


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ("NVIDIA H20", ["--peak-tflops"]),
        ("Tesla V100-SXM2-16GB", ["V100", "bf16"]),
    ],
    ids=["unknown GPU", "no peak for the type"],
)
def test_without_a_peak_there_are_rates_but_no_mfu(gpu: str, said: list[str]) -> None:
    """The note says what is not known, and which option helps."""
    found = computed(job({"model": 1e9, "hardware": 1e9, "dtype": "bf16"}, GpuProperties(gpu, 80)))

    assert (None, 10.0) == (found.mfu, found.tflops)
    assert all(words in found.note for words in said)


def test_without_a_count_there_are_no_figures() -> None:
    """Whatever stands in run.json, nothing is guessed and nothing fails."""
    rows: list[Any] = [None, {}, [], "many", {"model": "many"}, {"model": -1}, {"model": float("nan")}]
    for flops in rows:
        found = computed(job(flops))
        assert (False, "", "") == (found.known, found.source, found.note)
        assert {None} == {step.mfu for step in found.steps}


def test_a_rank_without_a_count_leaves_the_whole_unknown() -> None:
    """Rates of the ranks that have one stay."""
    run = job({"model": 1e9, "hardware": 1e9, "dtype": "bf16"})
    run.metadata["ranks"][1]["flops"] = None

    found = computed(run)

    assert (None, None) == (found.mfu, found.tflops)
    assert [10.0, 10.0, None, None] == [step.tflops for step in found.steps]
