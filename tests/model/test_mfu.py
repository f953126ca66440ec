"""Model and hardware FLOPs utilization."""

from __future__ import annotations

import pytest

from dptrace.model.mfu import achieved_flops_per_s, transformer_flops, utilization


def test_a_dense_transformer_costs_six_operations_for_each_parameter_and_token() -> None:
    """GPT-3's 175 billion parameters on 300 billion tokens: 3.15e23, the figure of its paper."""
    assert pytest.approx(3.15e23) == transformer_flops(175e9, 300e9)
    assert pytest.approx(1.05e23) == transformer_flops(175e9, 300e9, training=False)


def test_attention_adds_its_products() -> None:
    """24 layers of width 1024 on sequences of 559: 12·L·H·d·T for each of 8,944 tokens, a third of it forward."""
    forward = transformer_flops(0, 8944, layers=24, width=1024, sequence=559, training=False)

    assert pytest.approx(24 * 4 * 16 * 559**2 * 1024) == forward


def test_utilization_is_the_share_of_the_peak() -> None:
    """500 TFLOP/s of 1,000; no time has none."""
    assert 0.5 == utilization(5e12, 10_000_000, 1e15)
    assert utilization(5e12, 0, 1e15) is None
    assert utilization(5e12, 1, 0) is None
    assert achieved_flops_per_s(5e12, 10_000_000) == 5e14
