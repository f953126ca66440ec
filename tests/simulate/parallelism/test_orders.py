"""Orders of schedules, against those of the papers."""

from __future__ import annotations

import pytest

from dptrace.simulate.parallelism.orders import ORDERS, Action, interleaved, one_f_one_b, zero_bubble


def short(order: list[Action]) -> str:
    return " ".join(f"{action.kind[0].upper()}{action.micro}{'ab'[action.chunk]}" for action in order)


def test_1f1b_warms_up_and_drains() -> None:
    """Rank 0 of four: three forwards, then in turn, then three backwards; guide "Distributed Training", 10.3."""
    assert "F0a F1a F2a F3a B0a F4a B1a B2a B3a B4a" == short(one_f_one_b(0, 4, 5, 1))
    assert "F0a B0a F1a B1a F2a B2a" == short(one_f_one_b(3, 4, 3, 1))


def test_interleaved_runs_as_many_micro_batches_as_ranks_on_a_chunk() -> None:
    """Megatron's order for two ranks, four micro-batches and two chunks."""
    assert "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a" == short(interleaved(0, 2, 4, 2))


def test_zero_bubble_postpones_weights_by_the_rank() -> None:
    """ZB-H1: rank 0 computes weights at once, rank 1 a micro-batch later."""
    assert "F0a F1a B0a W0a F2a B1a W1a B2a W2a" == short(zero_bubble(0, 2, 3, 1))
    assert "F0a B0a F1a B1a W0a F2a B2a W1a W2a" == short(zero_bubble(1, 2, 3, 1))


@pytest.mark.parametrize("name", ORDERS)
def test_every_action_is_there_once(name: str) -> None:
    """Each micro-batch on each chunk, forward and backward."""
    for rank in range(4):
        order = ORDERS[name](rank, 4, 8, 2)
        chunks = range(2) if name == "interleaved" else range(1)
        kinds = ("forward", "backward", "weight") if name == "zero-bubble" else ("forward", "backward")
        expected = {Action(kind, micro, chunk) for kind in kinds for micro in range(8) for chunk in chunks}

        assert expected == set(order)
        assert len(expected) == len(order)
