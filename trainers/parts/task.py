"""What is trained: a model by its name, its data shared out over the ranks, and its loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dptrace.record import Options, World
from dptrace.record.options import check_batch
from dptrace.trainers.parts import mlp

__all__ = ["Data", "Task", "task"]


class Data(Protocol):
    """Samples in a fixed order, the same on every rank."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice) -> tuple[Tensor, Tensor]: ...


@dataclass
class Task:
    """A model and its data, for one rank."""

    model: nn.Module
    data: Data
    options: Options
    world: World

    def batches(
        self, steps: int, *, first: int = 0, index: int | None = None, count: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's shard of each global batch, over and over through the data.

        The batch of a step is the same however many ranks share it; samples at the end that do not fill a batch
        are left out.

        Args:
            steps: where to stop, counted from the first step of the training.
            first: the step to begin with.
            index, count: which of how many shards this rank takes; by default its rank, and the number of ranks.

        Raises:
            UsageError: the batch does not divide over the ranks.
        """
        index = self.world.rank if index is None else index
        count = self.world.size if count is None else count
        whole = self.options.batch_size
        check_batch(whole, count)
        shard, device = whole // count, self.world.device
        kind = getattr(torch, self.options.dtype)
        for step in range(first, steps):
            begin = step % (len(self.data) // whole) * whole + index * shard
            x, y = self.data[slice(begin, begin + shard)]
            yield x.to(device, kind if x.is_floating_point() else None), y.to(device)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Give the mean cross-entropy over all predictions of the batch: of images, or of each next token."""
        return cross_entropy(output.flatten(0, -2).float(), target.flatten())


def task(options: Options, world: World) -> Task:
    """Build the model and its data; the seed is the same on all ranks, and so are the parameters."""
    torch.manual_seed(options.seed)
    model = mlp.build(options.model)
    return Task(model.to(world.device, getattr(torch, options.dtype)), mlp.Images(options.seed), options, world)
