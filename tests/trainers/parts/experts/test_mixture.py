"""The output of a mixture of experts, its load counts and its balancing loss."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


def mixture(count: int = 4, top_k: int = 2, capacity_factor: float | None = None, shared: int = 0) -> Any:
    from dptrace.trainers.parts.experts.mixture import Experts
    from dptrace.trainers.parts.experts.settings import MixtureRanks, MixtureSettings

    torch.manual_seed(0)
    return Experts(8, MixtureSettings(count, top_k, capacity_factor, shared), MixtureRanks(), "block")


def test_a_token_gets_the_weighted_answers_of_its_best_experts() -> None:
    """The output equals a computation token by token and expert by expert."""
    experts = mixture()
    x = torch.randn(2, 5, 8)
    outputs = experts(x)

    for token, output in zip(x.flatten(0, 1), outputs.flatten(0, 1), strict=True):
        probability = experts.router(token).softmax(-1)
        best = probability.argsort(descending=True)[:2]
        expected = sum(probability[i] / probability[best].sum() * experts.experts[str(int(i))](token) for i in best)
        assert torch.allclose(expected, output, atol=1e-6)


def test_every_token_is_counted_for_each_of_its_experts() -> None:
    """The load sums to tokens times experts per token; a forward without gradients is not counted."""
    experts = mixture()
    experts(torch.randn(2, 5, 8))
    with torch.no_grad():
        experts(torch.randn(2, 5, 8))

    assert 20 == int(experts.load.sum())


def test_the_balancing_loss_is_one_where_all_experts_get_the_same() -> None:
    """E·Σ fᵢ·Pᵢ is 1 for equal shares, and E if one expert gets all tokens with probability 1."""
    experts = mixture(count=4, top_k=1)
    experts._update_load(torch.tensor([5, 5, 5, 5]), torch.full((20, 4), 0.25), 20)
    assert pytest.approx(1.0) == float(experts.balance)
    experts._update_load(torch.tensor([20, 0, 0, 0]), torch.eye(4)[torch.zeros(20, dtype=torch.int64)], 20)
    assert pytest.approx(4.0) == float(experts.balance)
