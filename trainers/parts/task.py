"""What is trained: a model by its name, its data shared out over the ranks, and its loss."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dptrace.record import Options, Recording, World
from dptrace.record.epoch_timer import EpochTimer
from dptrace.record.options.parse import SYNTHETIC_IMAGES, check_batch
from dptrace.trainers.parts import gpt, mlp, resnet
from dptrace.trainers.parts.blocks import prepare

__all__ = ["Data", "Task", "build_task"]


_VALIDATION_BATCH = 128
"""Samples that a rank validates at a time."""


class Data(Protocol):
    """Samples in a fixed order, the same on every rank."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice) -> tuple[Tensor, Tensor]: ...


@dataclass
class Task:
    """A model and its data, for one rank."""

    model: nn.Sequential
    data: Data
    options: Options
    world: World
    validation: Data | None = None
    """What the model is not trained on, where there is such."""

    def batches(
        self, steps: int, *, first: int | None = None, index: int | None = None, count: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's shard of each global batch, over and over through the data.

        The batch of a step is the same however many ranks share it; samples at the end that do not fill a batch
        are left out.

        Args:
            steps: where to stop, counted from the first step of the training.
            first: the step to begin with; by default where a training that was broken off goes on.
            index, count: which of how many shards this rank takes; by default its rank, and the number of ranks.

        Raises:
            UsageError: the batch does not divide over the ranks.
        """
        index = self.world.rank if index is None else index
        count = self.world.size if count is None else count
        whole = self.options.batch_size
        check_batch(whole, count)
        shard = whole // count
        for step in range(self.options.first_step if first is None else first, steps):
            begin = step % (len(self.data) // whole) * whole + index * shard
            yield self._on_device(*self.data[slice(begin, begin + shard)])

    def _on_device(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        kind = getattr(torch, self.options.dtype) if x.is_floating_point() else None
        return x.to(self.world.device, kind), y.to(self.world.device)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Give the mean cross-entropy over all predictions of the batch: of images, or of each next token."""
        return cross_entropy(output.flatten(0, -2).float(), target.flatten())

    def accuracy(self, model: nn.Module) -> float | None:
        """Give the share of the validation data that *model* classifies rightly; None where there is none.

        The ranks share the data, so all must call.
        """
        if self.validation is None:
            return None
        right = torch.zeros(1, device=self.world.device)
        model.eval()
        with torch.no_grad():
            for first in range(self.world.rank, len(self.validation), _VALIDATION_BATCH * self.world.size):
                rows = slice(first, first + _VALIDATION_BATCH * self.world.size, self.world.size)
                x, y = self._on_device(*self.validation[rows])
                right += (model(x).argmax(-1) == y).sum()
        model.train()
        if self.world.size > 1:
            dist.all_reduce(right)
        return float(right) / len(self.validation)

    def validate(self, recording: Recording | EpochTimer) -> None:
        """Put the model's accuracy into the results of a timing, after its last epoch; a recording has none."""
        if self.validation is not None and isinstance(recording, EpochTimer):
            recording.extra_results["accuracy"] = self.accuracy(self.model)


def build_task(options: Options, world: World, split: Callable[[nn.Sequential], None] | None = None) -> Task:
    """Build the model and its data; the seed is the same on all ranks, and so are the parameters.

    Args:
        split: what replaces layers of the model, in place, before anything is put around its blocks.
    """
    torch.manual_seed(options.seed)
    model, data, validation = _model_and_data(options)
    if world.rank == 0 and options.model == "resnet18":
        where = f"CIFAR-10 from {options.data}" if options.data else SYNTHETIC_IMAGES
        print(f"Training on {where}.", file=sys.stderr)
    model = model.to(world.device, getattr(torch, options.dtype))
    if split is not None:
        split(model)
    model = prepare(model, options, world.device.type)
    return Task(model, data, options, world, validation)


def _model_and_data(options: Options) -> tuple[nn.Sequential, Data, Data | None]:
    if options.model in mlp.WIDTHS:
        return mlp.build(options.model), mlp.Images(options.seed), None
    if options.model == "balanced":
        return mlp.balanced(), mlp.Images(options.seed), None
    if options.model in gpt.SIZES:
        return gpt.build(options.model), gpt.Text(options.model, options.seed), None
    if options.data:
        return resnet.build(), resnet.Cifar10(options.data), resnet.Cifar10(options.data, validation=True)
    return resnet.build(), resnet.SyntheticImages(options.seed), resnet.SyntheticImages(options.seed, validation=True)
