"""The whole prediction: scaling from 1 to 1,024 GPUs, and the roofline."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dptrace.model.training.describe import Description
from dptrace.model.training.memory_report import memory_report
from dptrace.model.training.network import Link
from dptrace.model.training.predict_report import predict_report
from dptrace.model.training.roofline import ccr, crossover_bytes, level, reduce_seconds

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


def test_amdahl_and_gustafson_bound_the_rows() -> None:
    """Amdahl's ceiling grows with the GPUs and stays below their number."""
    rows = predict_report(SIMULATED)["scaling"]

    assert all(1 - 1e-9 <= row["amdahl_ceiling"] <= row["gpus"] + 1e-9 for row in rows)
    assert all(0 < row["gustafson_efficiency"] <= 1 for row in rows)


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


def test_the_guides_roofline() -> None:
    """Guide, sections 6.2 to 6.6: CCR 3,072 for a sample of GPT-3, ridge 2,199, and compute-bound with 32 samples.

    989 dense TFLOP/s over 450 GB/s in one direction give the guide's ridge, which is 1,979 over 900.
    """
    one_sample = ccr(6 * 175e9 * 2048, 2 * 175e9 * 2)
    found = level(Link("NVLink 4", 1e-6, 450e9), 989.4e12, 32 * one_sample, 32)

    assert 3072 == one_sample
    assert 2199 == round(found.ridge)
    assert ("compute-bound", 1.0) == (found.regime, found.efficiency)
    assert pytest.approx(0.716, abs=0.001) == found.critical_batch


@pytest.mark.parametrize(
    ("samples", "regime"), [(0.1, "far below the ridge"), (0.5, "communication-bound"), (0.72, "near the ridge")]
)
def test_regimes(samples: float, regime: str) -> None:
    """Guide, section 6.6: below a fifth of the ridge, below four fifths, around it."""
    link = Link("NVLink 4", 1e-6, 450e9)

    assert regime == level(link, 989.4e12, samples * 3072, samples).regime


@pytest.mark.parametrize(
    ("alpha_s", "bytes_per_s", "expected"),
    [(1e-6, 450e9, 450e3), (1.5e-6, 25e9, 37.5e3), (5e-6, 12.5e9, 62.5e3), (50e-6, 12.5e9, 625e3)],
)
def test_the_guides_crossovers(alpha_s: float, bytes_per_s: float, expected: float) -> None:
    """Guide, section 5.3, with HDR's 200 Gb/s = 25 GB/s: NVLink 4, InfiniBand HDR, RoCE, TCP."""
    assert pytest.approx(expected) == crossover_bytes(Link("", alpha_s, bytes_per_s))


def test_adding_is_cheap_on_a_gpu() -> None:
    """Guide, section 5.5: on an H100, adding 1 GB among 8 ranks takes 0.8 ms, and sending it over NVLink 3.9."""
    assert pytest.approx(0.78e-3, rel=0.01) == reduce_seconds(1e9, 8, 3.35e12)
