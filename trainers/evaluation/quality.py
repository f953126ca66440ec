"""Loss and accuracy of a model on data, which the ranks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dptrace.record.ranks.distributed import World, at_least_float32

__all__ = ["loss_and_accuracy"]

_BATCH = 128
"""Samples that one rank evaluates at a time."""


@torch.no_grad()
def loss_and_accuracy(
    model: nn.Module,
    data: Any,
    samples: int,
    world: World,
    on_device: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> tuple[float, float]:
    """Return the mean cross-entropy of *samples* samples, and the share of them that the model classifies correctly.

    All ranks must call this. They use rank 0's buffers, such as batch norm's running statistics, as a checkpoint does.
    """
    sums = torch.zeros(2, device=world.device)
    if world.size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
    model.eval()
    for first in range(world.rank, samples, _BATCH * world.size):
        last = min(first + _BATCH * world.size, samples)
        x, y = on_device(*data[slice(first, last, world.size)])
        output = at_least_float32(model(x))
        sums += torch.stack([cross_entropy(output, y, reduction="sum").float(), (output.argmax(-1) == y).sum()])
    model.train()
    if world.size > 1:
        dist.all_reduce(sums)
    loss, correct = (sums / samples).tolist()
    return loss, correct
