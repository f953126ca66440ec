"""The output of a mixture of experts, its load counts and its balancing loss."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from dptrace.trainers.parts.experts import (  # noqa: E402
    Experts,
    MixtureRanks,
    choice_counts,
    has_room,
    kept_counts,
)


def mixture(count: int = 4, top_k: int = 2, capacity_factor: float | None = None, shared: int = 0) -> Any:
    options: Any = SimpleNamespace(experts=count, top_k=top_k, capacity_factor=capacity_factor, shared_experts=shared)
    torch.manual_seed(0)
    return Experts(8, options, MixtureRanks(), "block")


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


def test_the_balancing_loss_is_one_where_all_experts_get_the_same() -> None:
    """E·Σ fᵢ·Pᵢ is 1 for equal shares, and E if one expert gets all tokens with probability 1."""
    experts = mixture(count=4, top_k=1)
    experts._update_load(torch.tensor([5, 5, 5, 5]), torch.full((20, 4), 0.25), 20)
    assert pytest.approx(1.0) == float(experts.balance)
    experts._update_load(torch.tensor([20, 0, 0, 0]), torch.eye(4)[torch.zeros(20, dtype=torch.int64)], 20)
    assert pytest.approx(4.0) == float(experts.balance)


def test_tokens_beyond_the_capacity_get_nothing_and_are_counted() -> None:
    """Ten tokens choose one of four experts each; with room for half an even share, each expert takes the first two."""
    experts = mixture(top_k=1, capacity_factor=0.5)
    x = torch.randn(1, 10, 8)
    outputs = experts(x)[0]
    chosen = experts.router(x[0]).argmax(-1).tolist()
    for token, expert in enumerate(chosen):
        kept = chosen[:token].count(expert) < 2
        expected = experts.experts[str(expert)](x[0, token]) if kept else torch.zeros(8)
        assert torch.allclose(expected, outputs[token], atol=1e-6)

    assert [max(0, chosen.count(expert) - 2) for expert in range(4)] == experts.dropped.tolist()
    assert [chosen.count(expert) for expert in range(4)] == experts.load.tolist()


def test_shared_experts_get_every_token() -> None:
    """Their outputs are added to those of the chosen ones, also where these have no room."""
    experts = mixture(capacity_factor=0.01, top_k=1, shared=2)
    x = torch.randn(1, 10, 8)
    dropped = experts(x)[0, -1]

    assert torch.allclose(sum(expert(x[0, -1]) for expert in experts.shared), dropped, atol=1e-6)


def test_tokens_count_once_for_each_of_their_experts() -> None:
    """Not again where activation checkpointing runs forward in backward, nor in a forward without gradients."""
    experts = mixture()
    x = torch.randn(2, 5, 8, requires_grad=True)
    checkpoint(experts, x, use_reentrant=False).sum().backward()
    with torch.no_grad():
        experts(x)

    assert 20 == int(experts.load.sum())


def test_an_added_loss_trains_as_one_that_the_model_s_loss_contains() -> None:
    """The gradients of output + weight × balance, with the balance in the loss or added to the output's gradient."""
    gradients = []
    for added in (False, True):
        experts = mixture()
        experts.loss_weight = (lambda: 0.25) if added else None
        torch.manual_seed(1)
        outputs = experts(torch.randn(2, 5, 8))
        (outputs.sum() if added else outputs.sum() + 0.25 * experts.balance).backward()
        gradients.append(experts.router.weight.grad)

    assert torch.allclose(*gradients, atol=1e-7)
    assert not torch.equal(gradients[0], torch.zeros_like(gradients[0]))


# Which tokens experts have room for.


EXPERTS = 4


@pytest.mark.heavy
@given(
    ranks=st.sampled_from([1, 2, 3]),
    tokens=st.lists(st.permutations(range(EXPERTS)), min_size=6, max_size=12).map(
        lambda rows: rows[: len(rows) // 6 * 6]
    ),
    top_k=st.integers(1, 3),
    capacity=st.integers(0, 9),
)
def test_the_queue_is_served_in_order_on_any_number_of_ranks(
    ranks: int, tokens: list[list[int]], top_k: int, capacity: int
) -> None:
    """As a loop serves it: all first choices by token, then all second ones, each while its expert has room."""
    chosen = torch.tensor(tokens)[:, :top_k]
    served, expected = Counter[int](), torch.zeros_like(chosen, dtype=torch.bool)
    for place in range(top_k):
        for token, expert in enumerate(chosen[:, place].tolist()):
            expected[token, place] = served[expert] < capacity
            served[expert] += 1
    parts = chosen.chunk(ranks)
    counts = torch.stack([choice_counts(part, EXPERTS) for part in parts])

    assert torch.equal(expected, torch.cat([has_room(part, counts, r, capacity) for r, part in enumerate(parts)]))
    kept = [
        torch.bincount(part[has_room(part, counts, r, capacity)], minlength=EXPERTS) for r, part in enumerate(parts)
    ]
    assert torch.equal(torch.stack(kept), kept_counts(counts, capacity))
