"""Which tokens experts have room for."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from dptrace.trainers.parts.experts.routing import capacity_of, choice_counts, has_room, kept_counts  # noqa: E402

EXPERTS = 4


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


def test_a_capacity_is_a_share_rounded_up() -> None:
    """1.25 × 100 choices / 8 experts are 15.6; without a factor there is room for all, and 1.1 × 80 / 8 are 11."""
    assert (16, 100, 11) == (capacity_of(1.25, 100, 8), capacity_of(None, 100, 8), capacity_of(1.1, 80, 8))
