"""Bytes of a parameter's state."""

from __future__ import annotations

import pytest

from dptrace.model.training.memory.state import state_bytes


@pytest.mark.parametrize(
    ("precision", "optimizer", "expected"),
    [
        ("bf16", "adam", (2, 2, 12)),  # guide, section 1.2: 16 bytes a parameter
        ("fp32", "adam", (4, 4, 8)),  # guide, section 7.4: 16 too
        ("amp", "adamw", (4, 4, 8)),
        ("bf16-pure", "adam", (2, 2, 4)),
        ("bf16", "sgd", (2, 2, 4)),
        ("fp32", "sgd", (4, 4, 0)),
        ("bf16", "adam-8bit", (2, 2, 6)),
        ("bf16", "lion", (2, 2, 8)),
    ],
)
def test_bytes_by_precision_and_optimizer(precision: str, optimizer: str, expected: tuple[int, ...]) -> None:
    """Weights, gradients, and what the optimizer keeps."""
    each = state_bytes(precision, optimizer)

    assert expected == (each.parameters, each.gradients, each.optimizer)


def test_gradients_in_float32_make_eighteen_bytes() -> None:
    """Guide, section 7.4: 18 bytes, where gradients are accumulated in float32 beside a float32 copy of the weights."""
    assert 18 == state_bytes("bf16", gradient_bytes=4).total
    assert 12 == state_bytes("bf16", master=False).total
