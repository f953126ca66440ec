"""FLOPs, bytes and times of matrix products and attention, equal to TraceLens' own tables of the same traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.core.gpu import GpuProperties
from dptrace.model.gpu_peaks import gpu_peak, transformer_flops, utilization
from dptrace.model.operator_costs import cost
from tests.support.operator_calls import owners, read_operators
from tests.support.real_traces import needs_real_traces, real
from tests.support.tracelens import compare

pytestmark = needs_real_traces


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("folder", "rows"),
    [("compute/h100_bert_small", 5), ("compute/h100_qwen_0.5b", 6), ("compute/mi300_qwen_0.5b", 6)],
)
def test_every_row_of_the_tables_is_equal(folder: str, rows: int) -> None:
    """Count, GFLOPs, MB, time, TFLOP/s and TB/s of each operator and shape, within 0.1 %."""
    found = list(compare(Path(real(folder))))

    assert (rows, {}) == (len(found), {(row.name, row.dims): row.differing for row in found if row.differing})


@pytest.mark.heavy
def test_mfu_of_a_forward_by_hand() -> None:
    """Qwen's forward of 16 × 559 tokens on an H100: 2 FLOPs for each weight and token, and attention's 4·L·d·T."""
    tokens, layers, width, sequence = 16 * 559, 24, 1024, 559
    calls = owners(read_operators(Path(real("compute/h100_qwen_0.5b/trace.json.gz"))))
    costs = [found for call in calls if (found := cost(call.call())) is not None]
    products = sum(found.model_flops or 0 for found in costs if found.kind == "matmul")
    attention = sum(found.model_flops or 0 for found in costs if found.kind == "attention")
    peak = gpu_peak(GpuProperties("NVIDIA H100 80GB HBM3", 132))

    assert peak is not None
    # Each layer: Q, K, V and the output, [1024, 1024] each, and three of [1024, 2816].
    weights = layers * (4 * width * width + 3 * width * 2816)
    expected = transformer_flops(weights, tokens, layers=layers, width=width, sequence=sequence, training=False)
    assert pytest.approx(expected, rel=1e-3) == products + attention
    assert 4 * layers * width * sequence * tokens == attention
    mfu = utilization(products + attention, 35_000_000, peak.flops_per_s("bf16") or 0)
    assert mfu is not None
    assert 0.173 == round(mfu, 3)
