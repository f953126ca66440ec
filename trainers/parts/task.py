"""The task of a training: a model by its name, its data split over the ranks, and its loss."""

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
from dptrace.record.distributed import at_least_float32
from dptrace.record.epoch_timer import EpochTimer
from dptrace.record.options.parse import SYNTHETIC_IMAGES, check_batch
from dptrace.trainers.parts import gpt, mlp, resnet
from dptrace.trainers.parts.blocks import prepare

__all__ = ["Data", "Task", "build_task"]


_VALIDATION_BATCH = 128
"""Samples in a validation batch of one rank."""


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
    """Data that the model is not trained on; None if the model has none."""

    def batches(
        self, steps: int, *, first: int | None = None, index: int | None = None, count: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's shard of each global batch, cycling through the data.

        The global batch of a step does not depend on the number of ranks. Samples at the end that do not fill a batch
        are left out.

        Args:
            steps: the step at which to stop, counted from the first step of the training.
            first: the step to start with; by default the one from which a resumed training continues.
            index, count: this rank takes shard *index* of *count*; by default its rank and the number of ranks.

        Raises:
            UsageError: the batch is not divisible by the number of shards.
        """
        index = self.world.rank if index is None else index
        count = self.world.size if count is None else count
        batch = self.options.batch_size
        check_batch(batch, count)
        shard = batch // count
        for step in range(self.options.first_step if first is None else first, steps):
            begin = step % (len(self.data) // batch) * batch + index * shard
            yield self._on_device(*self.data[slice(begin, begin + shard)])

    def _on_device(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        dtype = getattr(torch, self.options.dtype) if x.is_floating_point() else None
        return x.to(self.world.device, dtype), y.to(self.world.device)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy over all predictions of the batch: of images, or of each next token."""
        return cross_entropy(at_least_float32(output.flatten(0, -2)), target.flatten())

    def accuracy(self, model: nn.Module) -> float | None:
        """Return the share of the validation data that *model* classifies correctly; None without validation data.

        The ranks split the data, so all must call this.
        """
        if self.validation is None:
            return None
        correct = torch.zeros(1, device=self.world.device)
        model.eval()
        with torch.no_grad():
            for first in range(self.world.rank, len(self.validation), _VALIDATION_BATCH * self.world.size):
                rows = slice(first, first + _VALIDATION_BATCH * self.world.size, self.world.size)
                x, y = self._on_device(*self.validation[rows])
                correct += (model(x).argmax(-1) == y).sum()
        model.train()
        if self.world.size > 1:
            dist.all_reduce(correct)
        return float(correct) / len(self.validation)

    def validate(self, recording: Recording | EpochTimer) -> None:
        """Add the model's accuracy to the results of a timed training, after its last epoch; ignore a recording."""
        if self.validation is not None and isinstance(recording, EpochTimer):
            recording.extra_results["accuracy"] = self.accuracy(self.model)


def build_task(options: Options, world: World, split: Callable[[nn.Sequential], None] | None = None) -> Task:
    """Build the model and its data, with the same seed and therefore the same parameters on all ranks.

    Args:
        split: replaces layers of the model, in place, before its blocks are wrapped.
    """
    torch.manual_seed(options.seed)
    model, data, validation = _model_and_data(options)
    if world.rank == 0 and options.model == "resnet18":
        source = f"CIFAR-10 from {options.data}" if options.data else SYNTHETIC_IMAGES
        print(f"Training on {source}.", file=sys.stderr)
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
