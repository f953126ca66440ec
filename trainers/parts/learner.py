"""How a step updates the parameters: the optimizer, and what may stand around it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dptrace.record import Options

__all__ = ["Learner", "optimizer_of"]


def optimizer_of(parameters: Iterable[Tensor], options: Options) -> torch.optim.Optimizer:
    """Make the optimizer that was asked for."""
    if options.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=options.lr, weight_decay=options.weight_decay)
    return torch.optim.SGD(parameters, lr=options.lr, weight_decay=options.weight_decay)


class Learner:
    """The update of a model's parameters."""

    def __init__(self, model: nn.Module, options: Options, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.model, self.options = model, options
        self.optimizer = optimizer_of(model.parameters(), options) if optimizer is None else optimizer

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients."""
        loss.backward()

    def step(self) -> None:
        """Update the parameters, and forget the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()
