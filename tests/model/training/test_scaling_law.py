"""The scaling law: exponents and budgets as published."""

from __future__ import annotations

import pytest

from dptrace.model.training.scaling_law import best_parameters, loss_ratio, parameter_ratio, training_flops


def test_half_the_loss_takes_nine_thousand_times_the_parameters() -> None:
    """The guide's section 1.1 says 8,000; the two functions are each other's inverse."""
    assert 9_139 == round(parameter_ratio(0.5))
    assert pytest.approx(0.5) == loss_ratio(parameter_ratio(0.5))
    assert pytest.approx(1 / 8) == loss_ratio(64, exponent=0.5)


def test_chinchilla_is_the_best_model_for_its_flops() -> None:
    """70 billion parameters and 1.4 trillion tokens take 5.9e23 FLOPs."""
    assert pytest.approx(5.88e23) == training_flops(70e9, 1.4e12)
    assert pytest.approx(70e9) == best_parameters(5.88e23)
