"""Products far below the roofline are found with the reason that their sizes and kernels show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.analysis.compute_findings.roofline import far_below_the_roofline
from tests.support.compute_files import H100, ComputeFile, context_of, inputs

BF16, FP32 = "c10::BFloat16", "float"


def one_product(
    folder: Path, m: int, k: int, n: int, us: float, dtype: str = BF16, kernel: str = "nvjet", **file: Any
) -> Any:
    product = inputs([m, k], [k, n], dtype=dtype)
    made = ComputeFile(step_us=10_000, **file).step().kernel("aten::mm", kernel, us, **product)
    return far_below_the_roofline(context_of(folder, made))


@pytest.mark.parametrize(
    ("reason", "m", "k", "n", "dtype", "kernel"),
    [
        ("slow_products", 4096, 4096, 4096, BF16, "nvjet"),
        ("misaligned_products", 4096, 4096, 30522, BF16, "cutlass_align2"),
        ("misaligned_products", 4096, 4097, 4096, BF16, "cutlass_align1"),
        ("small_products", 128, 4096, 512, BF16, "nvjet"),
        ("fp32_products", 4096, 4096, 4096, FP32, "ampere_sgemm_128x128_nn"),
        ("slow_products", 4096, 4096, 4096, FP32, "cutlass_tensorop_s1688gemm_128x128"),
    ],
)
def test_the_reason_is_given(tmp_path: Path, reason: str, m: int, k: int, n: int, dtype: str, kernel: str) -> None:
    """Each product takes four times its time on the roofline; 60 % of the roofline would save the rest."""
    peak = 989.4e12 if dtype == BF16 else 494.7e12
    size = (m * k + k * n + m * n) * (2 if dtype == BF16 else 4)
    roof_ns = max(2 * m * k * n / peak, size / 3.35e12) * 1e9
    (found,) = one_product(tmp_path, m, k, n, 4 * roof_ns / 1e3, dtype, kernel)

    assert reason == found.kind
    assert 4 * roof_ns - roof_ns / 0.6 == pytest.approx(found.cost_ns, rel=0.01)
    assert 0.25 == pytest.approx(found.evidence["products"][0]["share_of_roofline"], abs=0.002)
    assert [[m, k], [k, n]] == found.evidence["products"][0]["input_dims"]


def test_what_is_near_the_roofline_is_no_finding(tmp_path: Path) -> None:
    """139 µs is the roofline's time of the product; 300 is 46 % of it."""
    assert [] == one_product(tmp_path, 4096, 4096, 4096, 300)


def test_without_a_known_peak_nothing_is_said(tmp_path: Path) -> None:
    """Nor without shapes."""
    assert [] == one_product(tmp_path, 4096, 4096, 4096, 5000, gpu={**H100, "name": "Unknown GPU"})
    assert [] == far_below_the_roofline(context_of(tmp_path, ComputeFile().step().kernel("aten::mm", "gemm", 900)))


def test_the_kernels_of_a_call_count_together(tmp_path: Path) -> None:
    """A split product with a reduction afterwards is one call."""
    made = ComputeFile(step_us=10_000).step()
    made.kernel("aten::mm", "splitK", 600, **inputs([4096, 4096], [4096, 4096]))
    made.file.kernel("reduce", made.now, made.now + 100, made.host + 0.2)
    (found,) = far_below_the_roofline(context_of(tmp_path, made))

    assert 1 == found.evidence["products"][0]["calls_per_step"]
    assert 2 * 4096**3 / 989.4e12 * 1e6 / 700 == pytest.approx(
        found.evidence["products"][0]["share_of_roofline"], rel=1e-3
    )
