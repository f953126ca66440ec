"""Rows by operator and shape against their GPU's roofline."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dptrace.analysis.kernels.roofline import Roof, counted_flops, roof_of, with_roofline
from dptrace.core.gpu import GpuProperties
from dptrace.model.gpu_peaks import gpu_peak
from tests.support.builders import two_rank_timelines

H100 = GpuProperties("NVIDIA H100 80GB HBM3", 132)
ROOF = Roof(gpu_peak(H100))


def row(**more: Any) -> dict[str, Any]:
    """Return a row of 4 calls of 1 GFLOP and 10 MB in 40 µs, at half the time recomputed and all within steps."""
    figures = {"flops": 10**9, "counted_flops": 2 * 10**9, "model_flops": 10**9, "bytes": 10**7, "dtype": "bf16"}
    rates = {"tflops": 100.0, "gbps": 1000.0}
    times = {"total_ns": 40_000, "step_ns": 40_000, "compute_ns": 40_000, "count": 4, "recompute_count": 2}
    return figures | rates | times | more


def test_a_row_is_compared_with_both_limits() -> None:
    """100 FLOP/byte lie left of the ridge of 295, so memory is the nearer limit: 1,000 of 3,350 GB/s."""
    found = with_roofline(row(), ROOF)

    assert (100.0, 989.4, "memory") == (found["flops_per_byte"], found["peak_tflops"], found["bound"])
    assert pytest.approx((100 / 989.4, 1 / 3.35, 1 / 3.35), abs=1e-6) == (
        found["share_of_peak"],
        found["share_of_bandwidth"],
        found["share_of_roofline"],
    )


def test_right_of_the_ridge_arithmetic_is_the_limit() -> None:
    """1,000 FLOP/byte."""
    found = with_roofline(row(bytes=10**6, gbps=100.0), ROOF)

    assert ("compute", found["share_of_peak"]) == (found["bound"], found["share_of_roofline"])


def test_an_elementwise_operator_is_bound_by_memory() -> None:
    """It has bytes and no FLOPs."""
    found = with_roofline(row(flops=None, tflops=None), ROOF)

    assert ("memory", None, None) == (found["bound"], found["flops_per_byte"], found["share_of_peak"])
    assert pytest.approx(1 / 3.35, abs=1e-6) == found["share_of_roofline"]


def test_without_a_known_gpu_no_share_is_given() -> None:
    """With the peak alone, there is its share, but no bound."""
    unknown, given = with_roofline(row(), Roof()), with_roofline(row(), Roof(None, 200e12))

    assert (100.0, None, None, None) == tuple(
        unknown[name] for name in ("flops_per_byte", "share_of_peak", "share_of_roofline", "bound")
    )
    assert (0.5, 0.5, None) == tuple(given[name] for name in ("share_of_peak", "share_of_roofline", "bound"))


def test_the_roof_is_that_of_all_gpus_or_none() -> None:
    """Two kinds of GPU have no common roof."""
    one, other = (replace(timeline, gpu=H100) for timeline in two_rank_timelines())
    slower = replace(other, gpu=GpuProperties("NVIDIA L4", 58))

    assert ROOF == roof_of([one, other])
    assert Roof() == roof_of([one, slower])
    assert Roof() == roof_of([])
    assert Roof(None, 7e12) == roof_of([one, slower], 7)


def test_flops_add_up_to_mfu_and_hfu() -> None:
    """4 calls of 2 counted GFLOP; the model needs 1 of each of the 2 that are not recomputed. Half lie in the steps."""
    rest = row(flops=None, counted_flops=None, model_flops=None, total_ns=20_000, step_ns=20_000, compute_ns=20_000)

    found = counted_flops([row(step_ns=20_000), rest], 100_000, ROOF)

    assert found is not None
    assert (1e9, 4e9, 0.5, "bf16") == (found.model, found.hardware, found.covered, found.dtype)
    assert pytest.approx((10.0, 10 / 989.4, 40 / 989.4)) == (found.tflops, found.mfu, found.hfu)


def test_without_formulas_there_is_nothing_to_add_up() -> None:
    """Elementwise operators have no FLOPs that matter."""
    assert counted_flops([row(flops=None)], 100_000, ROOF) is None
    assert counted_flops([], 0, ROOF) is None
