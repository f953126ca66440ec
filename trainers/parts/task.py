"""The task of a training: a model by its name, its data split over the ranks, its loss, and the recording around it."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from dptrace.errors import UsageError
from dptrace.record import Options
from dptrace.record.distributed import World, assert_in_sync, at_least_float32, process_group, save_parameters
from dptrace.record.marks import phase
from dptrace.record.options.catalog import SYNTHETIC_IMAGES, parse_options
from dptrace.record.options.modes import REPLICATED
from dptrace.record.options.validation import check_ranks
from dptrace.record.recording import Recording, record
from dptrace.trainers.parts.epoch_results import QUALITY, epochs_before
from dptrace.trainers.parts.epoch_timer import EpochTimer, inference_latency
from dptrace.trainers.parts.models import Data, Order, model_and_data, token_options

# Wrappers around every block of a model: lower precision, checkpointed activations, compilation.
#
# They wrap each block and not the model, as is usual for large models: hooks on the gradients of a block still run as
# soon as backward has passed it, and a pipeline can split between blocks.


_AMP = {"bf16": torch.bfloat16, "fp16": torch.float16}


def prepare(model: nn.Sequential, options: Options, device: str) -> nn.Sequential:
    """Wrap each block of *model*, in place, as the options say.

    Raises:
        UsageError: --compile on CPU without a C++ compiler.
    """
    if options.compile and device == "cpu" and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        raise UsageError("--compile: torch.compile needs a C++ compiler on CPU (Debian: apt-get install g++).")
    every, recomputed = options.checkpoint_activations_every, list[nn.Module]()
    if options.checkpoint_activations or every is not None:  # all equal blocks, or every k-th, from the first on
        recomputed = layers_of(model)[:: every or 1]
    for block in model:
        if options.amp is not None:
            block.forward = torch.autocast(device, _AMP[options.amp])(block.forward)
        if block in recomputed:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if options.compile:
            block.compile()
    return model


def layers_of(model: nn.Sequential) -> list[nn.Module]:
    """Return the equal blocks of a model, without what it begins and ends with."""
    (kind, _), *_ = Counter(map(type, model)).most_common(1)
    return [block for block in model if type(block) is kind]


@dataclass
class Task:
    """A model and its data, for one rank."""

    model: nn.Sequential
    data: Data
    options: Options
    world: World
    order: Order
    validation: Data | None = None
    """Data that the model is not trained on; None if the model has none."""
    full_parameters: Mapping[str, Tensor] | None = None
    """All parameters, gathered by a trainer whose ranks hold different ones; it also checks that copies agree."""
    rank_entry: dict[str, Any] = field(default_factory=dict)  # what a trainer adds to its rank's entry in run.json

    @contextmanager
    def record(self, model: nn.Module, parameters: int | None = None) -> Iterator[Recording | EpochTimer]:
        """Record or time a training; then check that the ranks hold the same parameters, and save them.

        Args:
            parameters: the number of parameters of the whole model, if this rank's *model* holds only some.
        """
        with self._recorder(model) as recording:
            if parameters is not None:
                recording.parameters = parameters
            yield recording
            if self.full_parameters is None:
                assert_in_sync(model)
            if isinstance(recording, EpochTimer):
                self._time_inference(recording)
        save_parameters(model, self.options.save_parameters, self.full_parameters)

    def _recorder(self, model: nn.Module) -> Recording | EpochTimer:
        options = self.options
        if options.epochs is None:
            arguments = options.record_arguments | {"options": options.run_options | token_options(self.data)}
            recording = record(model=model, **arguments)
            recording.rank_entry = self.rank_entry
            return recording
        about = options.run_options | {"mode": options.mode}
        steps = options.steps_per_epoch
        timer = EpochTimer(options.epochs, steps, options.warmup, model, about, epochs_before(options))
        timer.at_epoch_end = self._evaluate
        every, write = options.checkpoint_every, options.write_checkpoint
        if write is not None and every is not None:
            timer.keep_epochs = lambda done: None if len(done) % every else write(done)
        return timer

    def _evaluate(self) -> dict[str, float | None]:
        """Return loss and accuracy on the validation data, and on as much of the training data; nothing without any.

        The ranks share the data, so all must call this.
        """
        if self.validation is None or self.options.mode not in REPLICATED:
            return {}
        found: dict[str, float | None] = {}
        count = min(len(self.validation), self.order.samples)
        for data, names in ((self.validation, QUALITY[:2]), (self.data, QUALITY[2:])):
            both = loss_and_accuracy(self.model, data, count, self.world, self.on_device)
            found |= {name: value if isfinite(value) else None for name, value in zip(names, both, strict=True)}
        return found

    def _time_inference(self, timer: EpochTimer) -> None:
        """Add the latency of the trained model to the results: rank 0 measures, the others wait."""
        sizes = self.options.inference
        if not sizes or self.options.mode not in REPLICATED:
            return
        if self.world.rank == 0:
            x, _ = self.on_device(*self.data[slice(0, min(max(sizes), len(self.data)))])
            timer.extra_results["inference"] = inference_latency(self.model, x, sizes)
        if self.world.size > 1:
            dist.barrier()

    def batches(self, steps: int, shard: tuple[int, int] | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's shard of each global batch, from the first step on, epoch after epoch.

        The global batch of a step does not depend on the number of ranks. Samples that do not fill a batch are left
        out of their epoch.

        Args:
            steps: the step at which to stop, counted from the first step of the training.
            shard: (index, count) of the shards that this rank takes; by default its rank and the number of ranks.
        """
        index, count = shard or (self.world.rank, self.world.size)
        for step in range(self.options.first_step, steps):
            yield self.on_device(*self.data[self.order.rows(step, index, count)])

    def on_device(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return samples on the model's device, in its number type."""
        dtype = getattr(torch, self.options.dtype) if x.is_floating_point() else None
        return x.to(self.world.device, dtype), y.to(self.world.device)

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a model on samples, computed as the forward phase of a step."""
        with phase("forward"):
            return self.loss(model(x), y)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy over all predictions of the batch: of images, or of each next token."""
        return cross_entropy(at_least_float32(output.flatten(0, -2)), target.flatten())


# Loss and accuracy of a model on data, which the ranks share.


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


def main(train: Callable[[Options, World], None], mode: str, description: str | None) -> None:
    """Run a trainer as one rank: read its command line, join the other ranks, check the options, and train.

    *description* is the trainer's docstring, which --help shows.
    """
    options = parse_options(description, mode)
    with process_group(cpu_tensors=options.cpu_offload) as world:
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
    seed = options.seed if options.model == "resnet18" else None
    warmup = 0 if options.epochs is None else options.warmup
    order = Order(min(options.samples or len(data), len(data)), options.batch_size, seed, warmup)
    options.steps_per_epoch = order.steps_per_epoch
    return Task(model, data, options, world, order, validation)
