"""The order of the training data: which samples each step uses, and which of them each rank takes.

A rank's samples are those that ``torch.utils.data.DistributedSampler(shuffle=True, drop_last=True)`` gives it: every
epoch has an order of its own, which follows from the seed, and rank r of n takes each n-th sample
of it from the r-th on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dptrace.errors import UsageError

Rows = slice | NDArray[np.int64]
"""Samples of a batch: a range of them, or their numbers."""


class Order:
    """The order of *samples* samples in batches of *batch_size*; what does not fill a batch is left out of an epoch.

    Args:
        seed: what the order of each epoch follows from; None to keep the order of the data.
        warmup: steps before the first epoch.

    Raises:
        UsageError: the samples do not fill a batch.
    """

    def __init__(self, samples: int, batch_size: int, seed: int | None, warmup: int = 0) -> None:
        if samples < batch_size:
            raise UsageError(
                f"--batch-size {batch_size}: the data has only {samples:,} samples; give at most that many, or more "
                "--samples."
            )
        self.samples, self.batch_size, self.seed, self.warmup = samples, batch_size, seed, warmup
        self.steps_per_epoch = samples // batch_size
        self._epoch: tuple[int, Any] = (-2, None)

    def rows(self, step: int, index: int, count: int) -> Rows:
        """Return the samples of a step that shard *index* of *count* takes.

        Steps of the warm-up are the last of an epoch before the first, whose order is another.
        """
        epoch, batch = divmod(step - self.warmup, self.steps_per_epoch)
        begin, size = batch * self.batch_size, self.batch_size // count
        if self.seed is None:
            return slice(begin + index * size, begin + (index + 1) * size)
        rows: NDArray[np.int64] = self._shuffled(epoch, self.seed)[begin + index : begin + self.batch_size : count]
        return rows

    def _shuffled(self, epoch: int, seed: int) -> NDArray[np.int64]:
        if self._epoch[0] != epoch:
            # A seed has 64 bits; the epoch before the first counts as the last of them.
            generator = torch.Generator().manual_seed((seed + epoch) % (1 << 63))
            self._epoch = epoch, torch.randperm(self.samples, generator=generator).numpy()
        return self._epoch[1]
