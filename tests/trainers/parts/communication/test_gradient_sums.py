"""All-reduces that start while backward goes on."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dptrace.trainers.parts.communication import gradient_sums  # noqa: E402
from dptrace.trainers.parts.communication.gradient_sums import GradientSums  # noqa: E402


class Network:
    """A process group of two ranks with equal gradients, which carries messages when they are waited for."""

    def __init__(self, size: int) -> None:
        self.size, self.sent = size, list[Any]()

    def get_world_size(self, group: object) -> int:
        return self.size

    def all_reduce(self, gradient: Any, group: object, async_op: bool) -> Network:
        self.sent.append(gradient)
        return self

    def wait(self) -> None:
        self.sent.pop().mul_(2)


def test_gradients_are_sent_in_the_last_backward_and_complete_after_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two micro-batches sends nothing; the second sends each layer's gradient, the last layer's first."""
    network = Network(2)
    monkeypatch.setattr(gradient_sums, "dist", network)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(3, 1, bias=False))
    last = False
    sums = GradientSums(lambda: last)
    sums.add(model.named_parameters(), group=None)

    model(torch.ones(1, 2)).sum().backward()
    assert [] == network.sent
    last = True
    model(torch.ones(1, 2)).sum().backward()
    assert [(1, 3), (3, 2)] == [tuple(gradient.shape) for gradient in network.sent]
    before = model[0].weight.grad.clone()
    sums.wait()
    assert torch.equal(2 * before, model[0].weight.grad)


def test_a_rank_alone_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradients are the sum."""
    network = Network(1)
    monkeypatch.setattr(gradient_sums, "dist", network)
    model = torch.nn.Linear(2, 3)
    sums = GradientSums(lambda: True)
    sums.add(model.named_parameters(), group=None)
    model(torch.ones(1, 2)).sum().backward()
    sums.wait()

    assert [] == network.sent
