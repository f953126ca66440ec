"""Tensor and sequence parallelism."""

from __future__ import annotations

import pytest

from tests.support.explanations import explained


@pytest.mark.parametrize(("name", "expected"), [("tp", ["AR Y", "AR dX"]), ("sp", ["AG X", "RS Y", "AG dY", "RS dX"])])
def test_collectives(name: str, expected: list[str]) -> None:
    """One all-reduce forward and one backward; sequence parallelism divides each in two."""
    work = [one for one in explained(name, 3).work if one.rank == 0 and one.lane == "communication"]

    assert expected == [one.label for one in work]


# Mixture of experts: routing, capacity, volume.


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("top_k", [1, 2])
def test_tokens_come_back(top_k: int, ranks: int) -> None:
    """What is dispatched comes back, and every rank sends to each other rank at most its capacity."""
    explanation = explained("moe", ranks, 6e6, tokens=6, top_k=top_k)
    out, back = explanation.steps[1].messages, explanation.steps[-1].messages

    assert {(m.source, m.target, m.label) for m in out} == {(m.target, m.source, m.label) for m in back}
    capacity = -(-1.25 * 6 * top_k // ranks)
    assert max(len(message.label.split()) for message in out) <= capacity
    assert all(message.bytes == 1e6 * len(message.label.split()) for message in out)


def test_a_large_capacity_drops_nothing() -> None:
    """And a small one drops what is beyond it."""
    ample = explained("moe", 4, capacity_factor=4.0).cost.figures
    scarce = explained("moe", 4, capacity_factor=0.5).cost.figures

    assert 0 == ample["dropped"] < scarce["dropped"]


def test_all_wait_for_the_fullest_expert() -> None:
    """The results travel when the expert with most tokens is done."""
    explanation = explained("moe", 4)
    experts = [one for one in explanation.work if one.label == "E"]

    assert explanation.steps[-1].start == max(one.end for one in experts) > min(one.end for one in experts)
