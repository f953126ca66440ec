"""Scaling formulas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.model.scaling import (
    amdahl_ceiling,
    best_parameters,
    communication_fraction,
    efficiency,
    gustafson_efficiency,
    loss_ratio,
    parallel_fraction,
    parameter_ratio,
    speedup,
    training_flops,
)

fractions = st.floats(0, 1)
gpus = st.integers(1, 10_000)


def test_the_figures_of_the_workshop() -> None:
    """Its xlarge network on four A100s: 2.40 times faster, f = 0.86, and a ceiling of 2.8 for this f."""
    f = parallel_fraction(0.5956, 0.0940)

    assert pytest.approx(2.40, abs=0.005) == speedup(0.5956, 0.2485)
    assert pytest.approx(0.60, abs=0.005) == efficiency(0.5956, 0.2485, 4)
    assert pytest.approx(0.864, abs=0.001) == f
    assert pytest.approx(2.84, abs=0.01) == amdahl_ceiling(f, 4)


@given(fractions, gpus)
def test_the_ceiling_lies_between_one_gpu_and_all_of_them(f: float, n: int) -> None:
    """1 for f = 0, n for f = 1, and never less with more GPUs."""
    ceiling = amdahl_ceiling(f, n)

    assert 1 <= ceiling * (1 + 1e-12)
    assert ceiling <= n * (1 + 1e-12)
    assert ceiling <= amdahl_ceiling(f, n + 1) * (1 + 1e-12)
    assert pytest.approx(n) == amdahl_ceiling(1, n)


@given(fractions, gpus)
def test_gustafsons_efficiency_falls_from_one_to_the_parallel_share(s: float, n: int) -> None:
    """One GPU loses nothing; n GPUs lose the share s of all but one."""
    assert 1 == gustafson_efficiency(s, 1)
    assert pytest.approx((n - s * (n - 1)) / n) == gustafson_efficiency(s, n)
    assert pytest.approx(0.25) == communication_fraction(0.5, 2)


# The scaling law: exponents and budgets as published.


def test_half_the_loss_takes_nine_thousand_times_the_parameters() -> None:
    """The guide's section 1.1 says 8,000; the two functions are each other's inverse."""
    assert 9_139 == round(parameter_ratio(0.5))
    assert pytest.approx(0.5) == loss_ratio(parameter_ratio(0.5))
    assert pytest.approx(1 / 8) == loss_ratio(64, exponent=0.5)


def test_chinchilla_is_the_best_model_for_its_flops() -> None:
    """70 billion parameters and 1.4 trillion tokens take 5.9e23 FLOPs."""
    assert pytest.approx(5.88e23) == training_flops(70e9, 1.4e12)
    assert pytest.approx(70e9) == best_parameters(5.88e23)
