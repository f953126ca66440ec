"""Attention in separate kernels is one finding, whatever else its kernels could be blamed for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.analysis.compute_findings.detect import compute_findings
from dptrace.analysis.findings.finding import Finding
from tests.support.compute_files import H100, ComputeFile, context_of, inputs

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
    assert ["_softmax", "add", "bmm", "mul"] == finding.evidence["operators"]
    assert 1900 + 2600 + 5700 + 1700 - 2 * FLOPS_US == pytest.approx(finding.cost_ns / 1e3, rel=1e-3)


def test_without_a_known_peak_products_cost_nothing(tmp_path: Path) -> None:
    """What is written and read between them does."""
    found = found_in(tmp_path, forward(ComputeFile(step_us=20_000, gpu={**H100, "name": "Unknown GPU"}).step()))

    assert 2600 + 5700 == found["unfused_attention"].cost_ns / 1e3


def test_backward_is_attention_too(tmp_path: Path) -> None:
    """The gradients of the scores' softmax, and the four products around it."""
    file, turned = ComputeFile(step_us=20_000).step(), [HEADS, WIDTH, LENGTH]
    for left, right in ((SCORES, HEAD), (HEAD, turned), (SCORES, HEAD), (SCORES, HEAD)):
        file.kernel("aten::bmm", "cutlass_align1", 1000, **inputs(left, right))
    file.kernel("aten::_softmax_backward_data", "softmax_backward", 3000, **inputs(SCORES, SCORES))

    cost = found_in(tmp_path, file)["unfused_attention"].cost_ns
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
