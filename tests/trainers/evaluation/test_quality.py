"""Loss and accuracy of a model, and what they leave as it was."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


class Scores:
    """Samples whose scores are themselves."""

    def __init__(self, scores: list[list[float]], classes: list[int]) -> None:
        self.x, self.y = torch.tensor(scores), torch.tensor(classes)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: slice) -> tuple[Any, Any]:
        return self.x[rows], self.y[rows]


def test_loss_and_accuracy_are_those_of_the_samples() -> None:
    """Three of four equal scores name another class; the loss of equal scores is the logarithm of their number."""
    from dptrace.record import World
    from dptrace.trainers.evaluation.quality import loss_and_accuracy

    data = Scores([[0.0, 0.0]] * 300 + [[9.0, 0.0]], [0] * 75 + [1] * 225 + [1])
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2, eps=0), torch.nn.Identity())
    world = World(0, 1, torch.device("cpu"))
    loss, accuracy = loss_and_accuracy(model, data, 300, world, lambda x, y: (x, y))

    assert pytest.approx(0.6931, abs=1e-4) == loss
    assert 0.25 == accuracy
    assert (True, 0) == (model.training, int(model[0].num_batches_tracked))
