"""A training that is timed epoch by epoch: after each the model is evaluated, and at the end its inference is timed."""

from __future__ import annotations

from math import isfinite
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor, nn

from dptrace.record import Options, World
from dptrace.record.epochs.results import QUALITY, epochs_before
from dptrace.record.epochs.timer import EpochTimer
from dptrace.record.options.modes import REPLICATED
from dptrace.trainers.data.order import Order
from dptrace.trainers.evaluation.latency import inference_latency
from dptrace.trainers.evaluation.quality import loss_and_accuracy

__all__ = ["evaluate", "time_inference", "timer_of"]


class _Task(Protocol):
    """What a task of dptrace.trainers.parts.task has; see there."""

    model: nn.Sequential
    options: Options
    world: World
    order: Order
    data: Any
    validation: Any

    def on_device(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]: ...


def timer_of(task: _Task, model: nn.Module, epochs: int) -> EpochTimer:
    """Return the timer of a training, which evaluates the model after each epoch and writes the checkpoints."""
    options = task.options
    about = options.run_options | {"mode": options.mode}
    timer = EpochTimer(epochs, options.steps_per_epoch, options.warmup, model, about, epochs_before(options))
    timer.at_epoch_end = lambda: evaluate(task)
    every, write = options.checkpoint_every, options.write_checkpoint
    if write is not None and every is not None:
        timer.keep_epochs = lambda done: None if len(done) % every else write(done)
    return timer


def evaluate(task: _Task) -> dict[str, float | None]:
    """Return loss and accuracy on the validation data, and on as much of the training data; nothing without any.

    The ranks share the data, so all must call this.
    """
    if task.validation is None or task.options.mode not in REPLICATED:
        return {}
    found: dict[str, float | None] = {}
    count = min(len(task.validation), task.order.samples)
    for data, names in ((task.validation, QUALITY[:2]), (task.data, QUALITY[2:])):
        both = loss_and_accuracy(task.model, data, count, task.world, task.on_device)
        found |= {name: value if isfinite(value) else None for name, value in zip(names, both, strict=True)}
    return found


def time_inference(task: _Task, timer: EpochTimer) -> None:
    """Add the latency of the trained model to the results: rank 0 measures, the others wait."""
    sizes = task.options.inference
    if not sizes or task.options.mode not in REPLICATED:
        return
    if task.world.rank == 0:
        x, _ = task.on_device(*task.data[slice(0, min(max(sizes), len(task.data)))])
        timer.extra_results["inference"] = inference_latency(task.model, x, sizes)
    if task.world.size > 1:
        dist.barrier()
