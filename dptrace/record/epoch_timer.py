"""Time a training loop without the profiler: epochs, and one line of results that a benchmark reads."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from statistics import fmean
from types import TracebackType
from typing import Any

import torch
from torch import nn

from dptrace.record.distributed import RankStore
from dptrace.record.environment import device_name, versions
from dptrace.record.launch.messages import RESULTS
from dptrace.record.profiler import Stopwatch, device_of

__all__ = ["EpochTimer", "results"]


class EpochTimer:
    """Stands where a recording stands in a trainer, and times whole epochs instead.

    Args:
        epochs: epochs to time, after the warm-up.
        steps_per_epoch: steps in each.
        warmup: steps before the first, counted nowhere.
        model: what is trained: its parameters are counted.
        options: what else the results should tell.
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
        self.extra_results: dict[str, Any] = {}
        """What a trainer adds to the results."""

    @property
    def total_steps(self) -> int:
        """Count all steps."""
        return self.warmup + self.epochs * self.steps_per_epoch

    def __enter__(self) -> EpochTimer:
        self.stopwatch.begin()
        return self

    def step(self, loss: torch.Tensor | float | None = None) -> None:
        """End a step; *loss* stays on its device until the end."""
        self.stopwatch.end()
        if loss is not None:
            self.losses.append(torch.as_tensor(loss).detach())
        self.stopwatch.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            return
        mine = self._rank_results()
        self.rank_store.publish(f"laps/{self.rank_store.rank}", json.dumps(mine))
        if self.rank_store.rank == 0:
            ranks = [mine] + [json.loads(self.rank_store.receive(f"laps/{r}")) for r in range(1, self.rank_store.size)]
            print(RESULTS, json.dumps(results(ranks, self.metadata(), self.epochs, self.steps_per_epoch)), flush=True)

    def _rank_results(self) -> dict[str, Any]:
        losses = torch.stack([loss.reshape(()) for loss in self.losses]).double().tolist() if self.losses else []
        return {"laps": self.stopwatch.durations_ns()[self.warmup :], "losses": losses[self.warmup :]}

    def metadata(self) -> dict[str, Any]:
        """Say what was trained, where, and with what."""
        # A trainer's own notes may be tensors, which stay on their device until now.
        options = {key: one.tolist() if isinstance(one, torch.Tensor) else one for key, one in self.options.items()}
        return {
            **options,
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
    """Put the results together.

    Args:
        ranks: of each rank, in order, ``laps`` (ns of each timed step) and ``losses`` (of each timed step).
        about: what was trained; ``batch_size`` in it gives the throughput.

    Returns:
        *about*, with ``epoch_s`` (seconds of each epoch: of the slowest rank, as all wait for it), ``avg_epoch_s``,
        ``samples_per_s``, ``step_s`` (of each timed step, of the slowest rank), ``losses`` (mean over ranks: the
        loss of the batch), ``local_losses`` (rank 0's own shard's).
    """
    steps = [max(laps) / 1e9 for laps in zip(*(rank["laps"] for rank in ranks), strict=True)]
    by_epoch = [
        [rank["laps"][i * steps_per_epoch : (i + 1) * steps_per_epoch] for rank in ranks] for i in range(epochs)
    ]
    epoch_s = [max(map(sum, laps)) / 1e9 for laps in by_epoch]
    samples = metadata["batch_size"] * steps_per_epoch
    losses_by_rank = [rank["losses"] for rank in ranks if rank["losses"]]
    means = [fmean(losses) for losses in zip(*losses_by_rank, strict=False)]
    return {
        "schema": 1,
        **metadata,
        "epochs": epochs,
        "steps_per_epoch": steps_per_epoch,
        "epoch_s": epoch_s,
        "avg_epoch_s": fmean(epoch_s),
        "samples_per_s": samples / fmean(epoch_s),
        "step_s": steps,
        "losses": [_finite(loss) for loss in means],
        "local_losses": [_finite(loss) for loss in ranks[0]["losses"]],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no NaN
