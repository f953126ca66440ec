"""The whole prediction: scaling from 1 to 1,024 GPUs, and the roofline."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dptrace.model.planning.describe import Description
from dptrace.model.planning.reports import memory_report, predict_report

SIMULATED = Description(
    params=7e9,
    layers=32,
    hidden=4096,
    gpus=8,
    gpu="a100",
    link="nvlink3,eth-100",
    strategy="ddp",
    mfu=0.5,
    batch=1024,
    seq=256,
    micro_batch=1,
    recompute="none",
)


def test_efficiency_from_1_to_1024_gpus() -> None:
    """Data-parallel page and seed 3's simulator: with a fixed batch, DDP's efficiency falls the more GPUs share it."""
    rows = predict_report(SIMULATED)["scaling"]
    strong = [row["strong_efficiency"] for row in rows]

    assert [1 << power for power in range(11)] == [row["gpus"] for row in rows]
    assert 1 == strong[0]
    assert strong[3] > 0.9 > 0.6 > strong[-1]
    assert all(later <= earlier * 1.001 for earlier, later in pairwise(strong))
    assert all(row["weak_efficiency"] > 0.9 for row in rows)


def test_memory_and_prediction_agree() -> None:
    """Both verbs count the same bytes for the same plan."""
    predicted = predict_report(SIMULATED)
    counted = memory_report(SIMULATED)

    assert predicted["per_gpu_bytes"] == counted["per_gpu_bytes"]
    assert predicted["fits"] is counted["fits"] is False


def test_days_of_a_training() -> None:
    """Megatron-LM, section 5.1: 300 billion tokens for 174.6 billion parameters take 1,024 A100s 34 days."""
    described = Description(
        params=174.6e9, layers=96, hidden=12_288, gpus=1024, gpu="a100", link="nvlink3,ib-hdr", strategy="3d", tp=8,
        pp=8, batch=1536, recompute="full", schedule="interleaved",
    )  # fmt: skip
    content = predict_report(described, tokens=300e9)

    assert pytest.approx(34, rel=0.1) == content["training_days"]
