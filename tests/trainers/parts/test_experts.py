"""The mixture of experts: what tokens get from it, whoever holds the experts."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


def mixture(count: int = 4, top_k: int = 2) -> Any:
    from dptrace.record import World
    from dptrace.trainers.parts.experts import Experts

    torch.manual_seed(0)
    return Experts(8, count, top_k, World(0, 1, torch.device("cpu")), "block")


def test_a_token_gets_the_weighted_answers_of_its_best_experts() -> None:
    """As computed token by token, one expert after the other."""
    one = mixture()
    x = torch.randn(2, 5, 8)
    answers = one(x)

    for token, answer in zip(x.flatten(0, 1), answers.flatten(0, 1), strict=True):
        probability = one.router(token).softmax(-1)
        best = probability.argsort(descending=True)[:2]
        expected = sum(probability[i] / probability[best].sum() * one.experts[str(int(i))](token) for i in best)
        assert torch.allclose(expected, answer, atol=1e-6)


def test_every_token_is_counted_for_each_of_its_experts() -> None:
    """The load adds up to tokens times experts a token; a forward without gradients is not counted."""
    one = mixture()
    one(torch.randn(2, 5, 8))
    with torch.no_grad():
        one(torch.randn(2, 5, 8))

    assert 20 == int(one.load.sum())


def test_the_balancing_loss_is_one_where_all_experts_get_the_same() -> None:
    """E·Σ fᵢ·Pᵢ is 1 for equal shares, and E where one expert gets all with certainty."""
    one = mixture(count=4, top_k=1)
    one._update_load(torch.tensor([5, 5, 5, 5]), torch.full((20, 4), 0.25))
    assert pytest.approx(1.0) == float(one.balance)
    one._update_load(torch.tensor([20, 0, 0, 0]), torch.eye(4)[torch.zeros(20, dtype=torch.int64)])
    assert pytest.approx(4.0) == float(one.balance)
