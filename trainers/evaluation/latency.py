"""How long a trained model takes for an image, in batches of one and of more."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dptrace.record.ranks.accelerator import accelerator_of

__all__ = ["inference_latency"]

_WARMUP = 3
"""Untimed runs, in which kernels are chosen and memory is allocated."""
_FEWEST, _MOST = 10, 200
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
    for run in range(_WARMUP + _MOST):
        if run == _WARMUP:
            began = clock()
        start = clock()
        model(batch)
        if accelerator is not None:
            accelerator.module.synchronize(batch.device)
        times.append(clock() - start)
        if len(times) >= _WARMUP + _FEWEST and clock() - began > _SECONDS:
            break
    return times[_WARMUP:]
