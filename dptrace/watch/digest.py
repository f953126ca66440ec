"""Distributions and courses over any number of steps in fixed memory.

A histogram has 1,024 buckets, each 2 % wide, from 1 µs to 10 minutes: a quantile is at most 1 % off. A course has 512
columns, each of which stands for the same number of steps; when they are full, each two become one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BUCKETS, COLUMNS = 1024, 512
_LEAST_NS, _WIDTH = 1e3, float(np.log(1.02))
"""The start of the first bucket, and the width of all in logarithms."""
CENTRES = _LEAST_NS * np.exp((np.arange(BUCKETS) + 0.5) * _WIDTH)
"""The middle of each bucket, in ns."""


class Histograms:
    """A histogram for each place of a grid of this shape, of times in ns; less than 1 µs is not counted."""

    def __init__(self, *shape: int) -> None:
        self.counts = np.zeros((*shape, BUCKETS), np.uint32)

    def add(self, values: Floats) -> None:
        """Add values of shape (*grid, any)."""
        flat = self.counts.reshape(-1, BUCKETS)
        rows = np.asarray(values).reshape(len(flat), -1)
        place, column = np.nonzero(rows >= _LEAST_NS)
        bucket = np.minimum((np.log(rows[place, column] / _LEAST_NS) / _WIDTH).astype(np.int64), BUCKETS - 1)
        np.add.at(flat, (place, bucket), 1)

    def quantile(self, share: float) -> float:
        """Return a quantile of all values in ns; 0 without any."""
        total = self.counts.reshape(-1, BUCKETS).sum(0, dtype=np.int64).cumsum()
        return float(CENTRES[np.searchsorted(total, share * total[-1])]) if total[-1] else 0.0

    def above(self, least: Floats | float) -> tuple[Ints, Floats]:
        """Return how many values of each place are above a limit in ns, and their sum."""
        kept = self.counts * (CENTRES >= np.asarray(least)[..., None])
        return kept.sum(-1).astype(np.int64), kept @ CENTRES


class Courses:
    """The sum, the largest value and the number of values per column, for each place of a grid of this shape."""

    def __init__(self, *shape: int) -> None:
        self.width = 1
        """How many steps a column stands for."""
        self.sums = np.zeros((*shape, COLUMNS), np.float32)
        self.largest = np.zeros((*shape, COLUMNS), np.float32)
        self.counts = np.zeros(COLUMNS, np.int64)

    def add(self, steps: Ints, values: Floats) -> None:
        """Add values of shape (*grid, steps)."""
        if not len(steps):
            return
        while steps[-1] // self.width >= COLUMNS:
            self._double()
        columns, starts, counts = np.unique(steps // self.width, return_index=True, return_counts=True)
        self.sums[..., columns] += np.add.reduceat(values, starts, axis=-1)
        self.largest[..., columns] = np.maximum(
            self.largest[..., columns], np.maximum.reduceat(values, starts, axis=-1)
        )
        self.counts[columns] += counts

    def _double(self) -> None:
        half = COLUMNS // 2
        for array in (self.sums, self.counts):
            array[..., :half] = array[..., ::2] + array[..., 1::2]
            array[..., half:] = 0
        self.largest[..., :half] = np.maximum(self.largest[..., ::2], self.largest[..., 1::2])
        self.largest[..., half:] = 0
        self.width *= 2

    @property
    def filled(self) -> npt.NDArray[np.intp]:
        """The columns that have values."""
        return np.flatnonzero(self.counts)

    def means(self) -> Floats:
        """Return the mean of each filled column."""
        filled = self.filled
        return self.sums[..., filled].astype(np.float64) / self.counts[filled]

    def first_step(self, place: int) -> int:
        """Return the first step of a filled column."""
        return int(self.filled[place]) * self.width if len(self.filled) else 0

    def arrays(self, name: str) -> dict[str, Any]:
        """Return its arrays, for a file."""
        return {f"{name}_sum": self.sums, f"{name}_max": self.largest, f"{name}_count": self.counts}
