"""Time the epochs of a training without the profiler, and inference after the last, as lines for a benchmark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dptrace.record.accelerator import accelerator_of
from dptrace.record.distributed import RankStore, device_name, versions
from dptrace.record.messages import EPOCH, RESULTS
from dptrace.record.profiler import Stopwatch, device_of
from dptrace.record.rank_metadata import losses_as_floats, plain_value
from dptrace.trainers.parts.epoch_results import epoch_line, epoch_result, results


class EpochTimer:
    """Takes the place of a recording in a trainer and times whole epochs.

    Args:
        epochs: epochs to time, after the warm-up.
        steps_per_epoch: steps in each epoch.
        warmup: untimed steps before the first epoch.
        model: the trained model, whose parameters are counted.
        options: further entries for the results.
        history: the results of the epochs before a checkpoint, if the training continues from one.
    """

    def __init__(
        self,
        epochs: int,
        steps_per_epoch: int,
        warmup: int,
        model: nn.Module | None,
        options: dict[str, Any],
        history: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.epochs, self.steps_per_epoch, self.warmup, self.options = epochs, steps_per_epoch, warmup, options
        parameters = [] if model is None else list(model.parameters())
        self.parameters = sum(parameter.numel() for parameter in parameters)
        self.parameter_bytes = [parameter.numel() * parameter.element_size() for parameter in parameters]
        self.device = device_of(parameters)
        self.rank_store = RankStore("timing")
        self.stopwatch = Stopwatch(self.device)
        self.epoch_results: list[dict[str, Any]] = [dict(epoch) for epoch in history]
        """Of each epoch so far, on rank 0; empty dictionaries on the others."""
        self.at_epoch_end: Callable[[], dict[str, float | None]] = dict
        """Called on all ranks after each epoch, while the clock stands still; returns figures for its results."""
        self.keep_epochs: Callable[[list[dict[str, Any]]], None] = lambda epochs: None
        """Called on all ranks after that with the results of all epochs so far, to write a checkpoint."""
        self.extra_results: dict[str, Any] = {}
        """Entries that a trainer adds to the results."""
        self._continued = len(history) > 0
        self._untimed = 0 if history else warmup
        self._laps: list[Any] = []
        self._losses: list[torch.Tensor] = []

    @property
    def total_steps(self) -> int:
        """The number of all steps."""
        return self.warmup + self.epochs * self.steps_per_epoch

    def __enter__(self) -> EpochTimer:
        self.stopwatch.begin()
        return self

    def step(self, loss: torch.Tensor | float | None = None) -> None:
        """End a step; *loss* stays on its device until the end of the epoch."""
        self._laps.append(self.stopwatch.end())
        if loss is not None:
            self._losses.append(torch.as_tensor(loss).detach())
        if len(self._laps) == self._untimed:
            self._untimed = 0
            self._laps, self._losses = [], []
        elif not self._untimed and len(self._laps) == self.steps_per_epoch:
            self._end_epoch()
        self.stopwatch.begin()

    def _end_epoch(self) -> None:
        """Collect what the ranks have measured, evaluate the model, and keep both."""
        mine = {"laps": self.stopwatch.durations_ns(self._laps), "losses": losses_as_floats(self._losses)}
        self._laps, self._losses = [], []
        ranks = self._of_all_ranks(mine)
        found = self.at_epoch_end()
        cold = self.warmup if self._continued else 0
        self._continued = False
        self.epoch_results.append(epoch_result(ranks, cold) | found if ranks else {})
        if ranks:
            number = len(self.epoch_results)
            samples = self.options["batch_size"] * self.steps_per_epoch
            line = epoch_line(self.epoch_results[-1], number, self.epochs, samples)
            print(EPOCH, json.dumps(line), flush=True)
        self.keep_epochs(self.epoch_results)

    def _of_all_ranks(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the laps and losses of all ranks on rank 0; nothing on the others."""
        what = f"epoch{len(self.epoch_results)}"
        self.rank_store.publish(f"{what}/{self.rank_store.rank}", json.dumps(mine))
        if self.rank_store.rank:
            return []
        return [mine] + [json.loads(self.rank_store.receive(f"{what}/{r}")) for r in range(1, self.rank_store.size)]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.rank_store.rank == 0:
            print(RESULTS, json.dumps(results(self.epoch_results, self.metadata(), self.steps_per_epoch)), flush=True)

    def metadata(self) -> dict[str, Any]:
        """Return the options, the model's size, the device and the versions of this training."""
        return {
            **{key: plain_value(value) for key, value in self.options.items()},
            "gpus": self.rank_store.size,
            "parameters": self.parameters,
            "parameter_bytes": self.parameter_bytes,
            "device": device_name(self.device),
            "versions": versions(),
            **self.extra_results,
        }


# How long a trained model takes for an image, in batches of one and of more.


_WARMUP = 3
"""Untimed runs, in which kernels are chosen and memory is allocated."""
_MIN_RUNS, _MAX_RUNS = 10, 200
"""After warming up: at least, and at most however short they are."""
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
        figures = {"batch_size": size, "runs": len(times), "p50_s": middle, "p95_s": late}
        figures |= {"sample_p50_s": middle / size, "sample_p95_s": late / size, "samples_per_s": size / middle}
        found.append(figures | {"threads": torch.get_num_threads()})
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
