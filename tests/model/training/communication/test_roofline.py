"""The communication roofline, with the guide's numbers."""

from __future__ import annotations

import pytest

from dptrace.model.training.communication.network import Link
from dptrace.model.training.communication.roofline import ccr, crossover_bytes, level, reduce_seconds


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
