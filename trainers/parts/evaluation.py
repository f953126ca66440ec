"""A training that is timed epoch by epoch: after each the model is evaluated, and at the end its inference is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dptrace.record import Options
from dptrace.record.accelerator import accelerator_of
from dptrace.record.distributed import World, at_least_float32
from dptrace.record.options.modes import REPLICATED
from dptrace.trainers.parts.epoch_results import QUALITY, epochs_before
from dptrace.trainers.parts.epoch_timer import EpochTimer
from dptrace.trainers.parts.order import Order

# How long a trained model takes for an image, in batches of one and of more.


_WARMUP = 3
"""Untimed runs, in which kernels are chosen and memory is allocated."""
_MIN_RUNS, _MAX_RUNS = 10, 200
_SECONDS = 0.5
"""Time after which no further run of a batch size begins."""


def inference_latency(
    model: nn.Module, samples: Tensor, batch_sizes: Sequence[int], clock: Callable[[], float] = time.perf_counter
) -> list[dict[str, Any]]:
    """Time the forward of a model that does not train.

    Args:
        samples: on the model's device; those of a batch are the first of them, again from the first where they are few.

    Returns:
        For each size ``batch_size``, ``runs``, ``p50_s`` and ``p95_s`` of a batch, ``sample_p50_s``, ``sample_p95_s``
        (their share of a sample), ``samples_per_s`` (at the median) and ``threads`` (of the CPU).
    """
    model.eval()
    found = []
    for size in batch_sizes:
        batch = samples.repeat(-(-size // len(samples)), *[1] * (samples.dim() - 1))[:size]
        times = _times(model, batch, clock)
        middle, late = np.percentile(times, [50, 95]).tolist()
        figures = {
            "runs": len(times),
            "p50_s": middle,
            "p95_s": late,
            "sample_p50_s": middle / size,
            "sample_p95_s": late / size,
        }
        found.append(
            {"batch_size": size, **figures, "samples_per_s": size / middle, "threads": torch.get_num_threads()}
        )
    model.train()
    return found


@torch.inference_mode()
def _times(model: nn.Module, batch: Tensor, clock: Callable[[], float]) -> list[float]:
    """Return the seconds of each run, until its result is there."""
    accelerator = accelerator_of(batch.device)
    times: list[float] = []
    began = clock()
    for run in range(_WARMUP + _MAX_RUNS):
        if run == _WARMUP:
            began = clock()
        start = clock()
        model(batch)
        if accelerator is not None:
            accelerator.module.synchronize(batch.device)
        times.append(clock() - start)
        if len(times) >= _WARMUP + _MIN_RUNS and clock() - began > _SECONDS:
            break
    return times[_WARMUP:]


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
