"""The task of a training: a model by its name, its data split over the ranks, its loss, and the recording around it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dptrace.record.distributed import World, assert_in_sync, at_least_float32, process_group, save_parameters
from dptrace.record.epoch_timer import EpochTimer
from dptrace.record.marks import phase
from dptrace.record.options.modes import REPLICATED
from dptrace.record.options.parse import SYNTHETIC_IMAGES, Options, parse_options
from dptrace.record.options.validation import check_ranks
from dptrace.record.recording import Recording, record
from dptrace.trainers.parts.blocks import prepare
from dptrace.trainers.parts.models import Data, model_and_data, token_options

__all__ = ["Task", "build_task", "main"]

_VALIDATION_BATCH = 128
"""Samples in a validation batch of one rank."""


@dataclass
class Task:
    """A model and its data, for one rank."""

    model: nn.Sequential
    data: Data
    options: Options
    world: World
    validation: Data | None = None
    """Data that the model is not trained on; None if the model has none."""
    full_parameters: Mapping[str, Tensor] | None = None
    """All parameters, gathered by a trainer whose ranks hold different ones; it also checks that copies agree."""

    @contextmanager
    def record(self, model: nn.Module, parameters: int | None = None) -> Iterator[Recording | EpochTimer]:
        """Record a training; then check that the ranks hold the same parameters, validate, and save the parameters.

        Args:
            parameters: the number of parameters of the whole model, if this rank's *model* holds only some.
        """
        with self._recorder(model) as recording:
            if parameters is not None:
                recording.parameters = parameters
            yield recording
            if self.full_parameters is None:
                assert_in_sync(model)
            if self.options.mode in REPLICATED:
                self.validate(recording)
        save_parameters(model, self.options.save_parameters, self.full_parameters)

    def _recorder(self, model: nn.Module) -> Recording | EpochTimer:
        options = self.options
        if options.epochs is None:
            arguments = options.record_arguments | {"options": options.run_options | token_options(self.data)}
            return record(model=model, **arguments)
        about = options.run_options | {"mode": options.mode}
        return EpochTimer(options.epochs, options.steps_per_epoch, options.warmup, model, about)

    def batches(self, steps: int, shard: tuple[int, int] | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's shard of each global batch, from the first step on, cycling through the data.

        The global batch of a step does not depend on the number of ranks. Samples at the end that do not fill a batch
        are left out.

        Args:
            steps: the step at which to stop, counted from the first step of the training.
            shard: (index, count) of the shards that this rank takes; by default its rank and the number of ranks.
        """
        index, count = shard or (self.world.rank, self.world.size)
        batch = self.options.batch_size
        size = batch // count
        for step in range(self.options.first_step, steps):
            begin = step % (len(self.data) // batch) * batch + index * size
            yield self._on_device(*self.data[slice(begin, begin + size)])

    def _on_device(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        dtype = getattr(torch, self.options.dtype) if x.is_floating_point() else None
        return x.to(self.world.device, dtype), y.to(self.world.device)

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a model on samples, computed as the forward phase of a step."""
        with phase("forward"):
            return self.loss(model(x), y)

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


def main(train: Callable[[Options, World], None], mode: str, description: str | None) -> None:
    """Run a trainer as one rank: read its command line, join the other ranks, check the options, and train.

    *description* is the trainer's docstring, which --help shows.
    """
    options = parse_options(description, mode)
    with process_group() as world:
        check_ranks(mode, vars(options), world.size)
        train(options, world)


def build_task(options: Options, world: World, split: Callable[[nn.Sequential], None] | None = None) -> Task:
    """Build the model and its data, with the same seed and therefore the same parameters on all ranks.

    Args:
        split: replaces layers of the model, in place, before its blocks are wrapped.
    """
    torch.manual_seed(options.seed)
    model, data, validation = model_and_data(options)
    if world.rank == 0 and options.model == "resnet18":
        source = f"CIFAR-10 from {options.data}" if options.data else SYNTHETIC_IMAGES
        print(f"Training on {source}.", file=sys.stderr)
    model = model.to(world.device, getattr(torch, options.dtype))
    if split is not None:
        split(model)
    model = prepare(model, options, world.device.type)
    return Task(model, data, options, world, validation)
