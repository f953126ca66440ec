"""Time the epochs of a training without the profiler, and print one line of results for a benchmark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean
from types import TracebackType
from typing import Any

import torch
from torch import nn

from dptrace.record.distributed import RankStore
from dptrace.record.environment import device_name, versions
from dptrace.record.launch.manifest import mean_losses
from dptrace.record.launch.messages import RESULTS
from dptrace.record.profiler import Stopwatch, device_of
from dptrace.record.rank_metadata import losses_as_floats, plain_value

__all__ = ["EpochTimer", "results"]


class EpochTimer:
    """Takes the place of a recording in a trainer and times whole epochs.

    Args:
        epochs: epochs to time, after the warm-up.
        steps_per_epoch: steps in each epoch.
        warmup: untimed steps before the first epoch.
        model: the trained model, whose parameters are counted.
        options: further entries for the results.
    """

    def __init__(
        self, epochs: int, steps_per_epoch: int, warmup: int, model: nn.Module | None, options: dict[str, Any]
    ) -> None:
        self.epochs, self.steps_per_epoch, self.warmup, self.options = epochs, steps_per_epoch, warmup, options
        parameters = [] if model is None else list(model.parameters())
        self.parameters = sum(parameter.numel() for parameter in parameters)
        self.parameter_bytes = [parameter.numel() * parameter.element_size() for parameter in parameters]
        self.device = device_of(parameters)
        self.rank_store = RankStore("timing")
        self.stopwatch = Stopwatch(self.device)
        self.losses: list[torch.Tensor] = []
        self._laps: list[Any] = []
        self.extra_results: dict[str, Any] = {}
        """Entries that a trainer adds to the results."""

    @property
    def total_steps(self) -> int:
        """The number of all steps."""
        return self.warmup + self.epochs * self.steps_per_epoch

    def __enter__(self) -> EpochTimer:
        self.stopwatch.begin()
        return self

    def step(self, loss: torch.Tensor | float | None = None) -> None:
        """End a step; *loss* stays on its device until the end."""
        self._laps.append(self.stopwatch.end())
        if loss is not None:
            self.losses.append(torch.as_tensor(loss).detach())
        self.stopwatch.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            return
        rank_results = self._rank_results()
        self.rank_store.publish(f"laps/{self.rank_store.rank}", json.dumps(rank_results))
        if self.rank_store.rank == 0:
            others = [json.loads(self.rank_store.receive(f"laps/{r}")) for r in range(1, self.rank_store.size)]
            ranks = [rank_results, *others]
            print(RESULTS, json.dumps(results(ranks, self.metadata(), self.epochs, self.steps_per_epoch)), flush=True)

    def _rank_results(self) -> dict[str, Any]:
        durations, losses = self.stopwatch.durations_ns(self._laps), losses_as_floats(self.losses)
        return {"laps": durations[self.warmup :], "losses": losses[self.warmup :]}

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


def results(
    ranks: Sequence[dict[str, Any]], metadata: dict[str, Any], epochs: int, steps_per_epoch: int
) -> dict[str, Any]:
    """Combine the results of all ranks.

    Args:
        ranks: ``laps`` (ns) and ``losses`` of each timed step, for each rank in order.
        metadata: see :meth:`EpochTimer.metadata`; its ``batch_size`` determines the throughput.

    Returns:
        *metadata*, with ``epoch_s`` (seconds of each epoch on the slowest rank, for which all others wait),
        ``avg_epoch_s``, ``samples_per_s``, ``step_s`` (of each timed step on the slowest rank), ``losses`` (mean over
        ranks: the loss of the batch), ``local_losses`` (of rank 0's shard).
    """
    steps = [max(laps) / 1e9 for laps in zip(*(rank["laps"] for rank in ranks), strict=True)]
    by_epoch = [
        [rank["laps"][i * steps_per_epoch : (i + 1) * steps_per_epoch] for rank in ranks] for i in range(epochs)
    ]
    epoch_s = [max(map(sum, laps)) / 1e9 for laps in by_epoch]
    samples = metadata["batch_size"] * steps_per_epoch
    return {
        "schema": 1,
        **metadata,
        "epochs": epochs,
        "steps_per_epoch": steps_per_epoch,
        "epoch_s": epoch_s,
        "avg_epoch_s": fmean(epoch_s),
        "samples_per_s": samples / fmean(epoch_s),
        "step_s": steps,
        "losses": mean_losses([rank["losses"] for rank in ranks]),
        "local_losses": mean_losses([ranks[0]["losses"]]),
    }
