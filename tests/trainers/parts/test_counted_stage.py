"""Activations in flight: the micro-batches that are held, and the bytes that autograd keeps of them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dptrace.trainers.parts.counted_stage import InFlight  # noqa: E402

FLOAT = 4


def forward(counted: InFlight, layers: Any, stage: int, micro_batch: int) -> None:
    with counted.forward(stage, micro_batch):
        layers(torch.ones(5, 8, requires_grad=True))


def test_the_most_micro_batches_at_once_are_counted() -> None:
    """Of two stages, each counts; a backward releases its own, and what follows the step is not counted."""
    layers = torch.nn.Linear(8, 8)
    counted = InFlight(layers.parameters())
    for stage, micro_batch in ((0, 0), (1, 0)):
        forward(counted, layers, stage, micro_batch)
    counted.backward(1, 0)
    forward(counted, layers, 0, 1)

    assert (2, 2 * 5 * 8 * FLOAT) == (counted.peak, counted.peak_bytes)
    counted.close()
    for micro_batch in range(4):
        forward(counted, layers, 0, micro_batch)
    assert 2 == counted.peak


def test_a_tensor_counts_once_and_parameters_do_not() -> None:
    """A ReLU's output is kept by the ReLU and by the layer after it: the input, that output, and the output's input."""
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    counted = InFlight(layers.parameters())
    forward(counted, layers, 0, 0)

    assert 5 * (8 + 16) * FLOAT == counted.peak_bytes


def test_the_loss_belongs_to_the_latest_forward() -> None:
    """What softmax keeps is added to the micro-batch; before any forward, as where torch finds shapes, nothing is."""
    layers = torch.nn.Linear(8, 3, bias=False)
    counted = InFlight(layers.parameters())
    with counted.more():
        layers(torch.ones(5, 8, requires_grad=True))
    assert (0, 0) == (counted.peak, counted.peak_bytes)
    with counted.forward(0, 0):
        scores = layers(torch.ones(5, 8))
    with counted.more():
        scores.softmax(-1)

    assert 5 * (8 + 3) * FLOAT == counted.peak_bytes


def test_without_bytes_micro_batches_are_still_counted() -> None:
    """Under torch.compile, hooks would change what is compiled."""
    layers = torch.nn.Linear(8, 8)
    counted = InFlight(layers.parameters(), in_bytes=False)
    forward(counted, layers, 0, 0)

    assert (1, 0) == (counted.peak, counted.peak_bytes)
