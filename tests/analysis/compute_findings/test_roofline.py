"""Products far below the roofline are found with the reason that their sizes and kernels show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.analysis.compute_findings.detect import compute_findings
from dptrace.analysis.compute_findings.roofline import elementwise_chains, far_below_the_roofline
from dptrace.analysis.findings.finding import Finding
from tests.support.compute_files import H100, ComputeFile, context_of, inputs

BF16, FP32 = "c10::BFloat16", "float"


def one_product(
    folder: Path, m: int, k: int, n: int, us: float, dtype: str = BF16, kernel: str = "nvjet", **file: Any
) -> Any:
    product = inputs([m, k], [k, n], dtype=dtype)
    made = ComputeFile(step_us=10_000, **file).step().kernel("aten::mm", kernel, us, **product)
    return far_below_the_roofline(context_of(folder, made))


def test_the_reason_is_given(tmp_path: Path) -> None:
    """Each product takes four times its time on the roofline; 60 % of the roofline would save the rest."""
    for reason, m, k, n, dtype, kernel in (
        ("slow_products", 4096, 4096, 4096, BF16, "nvjet"),
        ("misaligned_products", 4096, 4096, 30522, BF16, "cutlass_align2"),
        ("misaligned_products", 4096, 4097, 4096, BF16, "cutlass_align1"),
        ("small_products", 128, 4096, 512, BF16, "nvjet"),
        ("fp32_products", 4096, 4096, 4096, FP32, "ampere_sgemm_128x128_nn"),
        ("slow_products", 4096, 4096, 4096, FP32, "cutlass_tensorop_s1688gemm_128x128"),
    ):
        peak = 989.4e12 if dtype == BF16 else 494.7e12
        size = (m * k + k * n + m * n) * (2 if dtype == BF16 else 4)
        roof_ns = max(2 * m * k * n / peak, size / 3.35e12) * 1e9
        (found,) = one_product(tmp_path, m, k, n, 4 * roof_ns / 1e3, dtype, kernel)
        assert reason == found.kind
        assert 4 * roof_ns - roof_ns / 0.6 == pytest.approx(found.counted_ns, rel=0.01)
        assert 0.25 == pytest.approx(found.evidence.to_dict()["products"][0]["share_of_roofline"], abs=0.002)
        assert [[m, k], [k, n]] == found.evidence.to_dict()["products"][0]["input_dims"]


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

    assert 1 == found.evidence.to_dict()["products"][0]["calls_per_step"]
    assert 2 * 4096**3 / 989.4e12 * 1e6 / 700 == pytest.approx(
        found.evidence.to_dict()["products"][0]["share_of_roofline"], rel=1e-3
    )


# Chains of elementwise kernels on one stream are found, with what fusing them would save.


SAME = inputs([1024, 1024], [1024, 1024])
SMALL = inputs([8, 8], [8, 8])


def chain(file: ComputeFile, *lengths: float) -> ComputeFile:
    for length in lengths:
        file.kernel("aten::add", "vectorized_add", length, **SAME)
    return file


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

    assert 20_000 + 120_000 == found.counted_ns
    assert "mul → exp → mul → neg" == found.evidence.to_dict()["chain"]


def test_a_compiled_job_is_not_to_be_compiled(tmp_path: Path) -> None:
    """Chains beside the compiled graphs, a slow product and short kernels: no advice calls torch.compile."""
    for kernel in ("gemm", "triton_poi_fused_add_0", "triton_tem_fused_mm_0", "triton__0d1d2d"):
        file = chain(ComputeFile(step_us=1500).step(), 8, 8, 8, 8, 8).kernel("aten::mul", kernel, 5, idle=50)
        file.kernel("aten::mm", "nvjet", 900, **inputs([4096, 4096], [4096, 4096], dtype=BF16))
        context = context_of(tmp_path, file)
        found = {one.kind: one for one in compute_findings(context.timelines, context.calls)}
        assert {"elementwise_chains", "slow_products", "short_kernels"} <= found.keys()
        for one in found.values():
            assert (kernel == "gemm") == ("torch.compile" in one.advice)


def test_chains_of_the_optimizer_have_advice_of_their_own(tmp_path: Path) -> None:
    """They are launched within its step."""
    file = ComputeFile().step()
    file.file.label("Optimizer.step#SGD.step", 0.5, 50)
    (found,) = elementwise_chains(context_of(tmp_path, chain(file, 10, 10, 10)))

    assert ("unfused_optimizer", 20_000) == (found.kind, found.counted_ns)


# Attention in separate kernels is one finding, whatever else its kernels could be blamed for.


LENGTH, HEADS, WIDTH = 3137, 96, 64
SCORES, HEAD = [HEADS, LENGTH, LENGTH], [HEADS, LENGTH, WIDTH]
FLOPS_US = 2 * HEADS * LENGTH * LENGTH * WIDTH / 989.4e12 / 0.6 * 1e6
"""Time of a product at 60 % of the peak."""


def found_in(folder: Path, file: ComputeFile) -> dict[str, Finding]:
    context = context_of(folder, file)
    return {finding.kind: finding for finding in compute_findings(context.timelines, context.calls)}


def forward(file: ComputeFile) -> ComputeFile:
    """Add the kernels of timesformer's attention on an H100: scores of 8 × 12 heads, with a view between products."""
    split = [8, 12, LENGTH, LENGTH]
    file.kernel("aten::bmm", "cutlass_align1", 1900, **inputs(HEAD, [HEADS, WIDTH, LENGTH]))
    file.kernel("aten::mul", "vectorized", 1300, **inputs(split, []))
    file.kernel("aten::add", "vectorized", 1300, **inputs(split, [8, 1, 1, LENGTH]))
    file.kernel("aten::_softmax", "cunn_SoftMaxForward", 5700, **inputs(split))
    file.kernel("aten::copy_", "copy of v", 60, **inputs(HEAD, HEAD))
    return file.kernel("aten::bmm", "cutlass_align1", 1700, **inputs(SCORES, HEAD))


def test_attention_costs_what_one_kernel_would_save(tmp_path: Path) -> None:
    """All that is done to scores, and the products beyond 60 % of the peak; rows are no multiple of 16 bytes, too."""
    found = found_in(tmp_path, forward(ComputeFile(step_us=20_000).step()))

    assert {"unfused_attention"} == found.keys()
    finding = found["unfused_attention"]
    assert "scaled_dot_product_attention" in finding.advice
    assert ["_softmax", "add", "bmm", "mul"] == finding.evidence.to_dict()["operators"]
    assert 1900 + 2600 + 5700 + 1700 - 2 * FLOPS_US == pytest.approx(finding.counted_ns / 1e3, rel=1e-3)


def test_without_a_known_peak_products_cost_nothing(tmp_path: Path) -> None:
    """What is written and read between them does."""
    found = found_in(tmp_path, forward(ComputeFile(step_us=20_000, gpu={**H100, "name": "Unknown GPU"}).step()))

    assert 2600 + 5700 == found["unfused_attention"].counted_ns / 1e3


def test_backward_is_attention_too(tmp_path: Path) -> None:
    """The gradients of the scores' softmax, and the four products around it."""
    file, turned = ComputeFile(step_us=20_000).step(), [HEADS, WIDTH, LENGTH]
    for left, right in ((SCORES, HEAD), (HEAD, turned), (SCORES, HEAD), (SCORES, HEAD)):
        file.kernel("aten::bmm", "cutlass_align1", 1000, **inputs(left, right))
    file.kernel("aten::_softmax_backward_data", "softmax_backward", 3000, **inputs(SCORES, SCORES))

    cost = found_in(tmp_path, file)["unfused_attention"].counted_ns
    assert 4000 + 3000 - 4 * FLOPS_US == pytest.approx(cost / 1e3, rel=1e-3)


def test_a_softmax_that_no_product_made_or_takes_is_no_attention(tmp_path: Path) -> None:
    """A router's, and fused attention next to batched products."""
    file = ComputeFile(step_us=20_000).step().kernel("aten::_softmax", "softmax", 5000, **inputs([8, 512, 64]))
    file.kernel("aten::bmm", "gemm", 1900, **inputs(HEAD, [HEADS, WIDTH, LENGTH]))
    file.kernel("aten::bmm", "gemm", 1900, **inputs(SCORES, HEAD))

    assert "unfused_attention" not in found_in(tmp_path, file)


def test_products_without_shapes_are_unknown(tmp_path: Path) -> None:
    """The recording has none, or not all."""
    assert "unfused_attention" not in found_in(tmp_path, ComputeFile().step().kernel("aten::bmm", "gemm", 500))


def test_sizes_that_are_none_are_read_as_unknown(tmp_path: Path) -> None:
    """A value that is no tensor does not matter for the bytes of a fill."""
    bad: dict[str, Any] = {"Input Dims": [SCORES, [-1, -1, -1]], "Input type": ["float", "float"]}
    file = forward(ComputeFile(step_us=20_000).step()).kernel("aten::fill_", "fill", 100, **bad)

    assert "unfused_attention" in found_in(tmp_path, file)
