"""The alpha-beta model of each kind of collective, fitted to the transfer times of the run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.transfers import Timing
from dptrace.analysis.matching.match import Matches
from dptrace.model.collectives import bus_factor

__all__ = ["AlphaBeta", "alpha_beta", "fit_line"]

_RATIO = 2
"""Sizes must differ by more than this factor for the slope to mean anything."""


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """One kind of collective in one group: transfer time = alpha + beta × bytes."""

    kind: str
    group: int
    """Index into the matches' groups."""
    ranks: int
    count: int
    """Number of instances in the fit."""
    sizes: int
    """Number of distinct sizes."""
    alpha_s: float | None
    """Seconds of a collective of size 0; None without a fit, like the next three."""
    beta_s_per_byte: float | None
    r2: float | None
    """Share of the variance that the line explains, each instance weighted by 1/t²."""
    deviation: float | None
    """Median distance of the instances from the line, as a share of the line."""
    reason: str = ""
    """Why there is no fit."""

    @property
    def crossover_bytes(self) -> float | None:
        """Size at which latency and transfer take equally long; smaller messages are mostly latency."""
        return self.alpha_s / self.beta_s_per_byte if self.alpha_s is not None and self.beta_s_per_byte else None

    def seconds(self, size: int) -> float | None:
        """Return the time of a message of *size* bytes, or None without a fit."""
        if self.alpha_s is None or self.beta_s_per_byte is None:
            return None
        return self.alpha_s + self.beta_s_per_byte * size

    def busbw(self, size: int) -> float | None:
        """Return the bus bandwidth of a message of *size* bytes in bytes per second, or None without a fit."""
        seconds = self.seconds(size)
        return bus_factor(self.kind, self.ranks) * size / seconds if seconds else None


def alpha_beta(matches: Matches, timing: Timing) -> tuple[AlphaBeta, ...]:
    """Fit each kind of collective in each group.

    Only instances with known bytes and with all ranks recorded count: the transfer time of others is unknown.
    """
    usable = matches.complete & (matches.bytes > 0) & (timing.transfer_ns > 0) & (matches.size > 1)
    found = []
    for kind, group in sorted(set(zip(matches.kind.tolist(), matches.group.tolist(), strict=True))):
        mine = np.flatnonzero((matches.kind == kind) & (matches.group == group))
        good = mine[usable[mine]]
        ranks = int(matches.size[mine].max())
        found.append(
            _of(str(kind), int(group), ranks, matches.bytes[good], timing.transfer_ns[good].astype(np.float64) * 1e-9)
        )
    return tuple(found)


def _of(kind: str, group: int, ranks: int, size: NDArray[np.int64], seconds: NDArray[np.float64]) -> AlphaBeta:
    sizes = np.unique(size)
    about = kind, group, ranks, len(size), len(sizes)
    if not len(size):
        return AlphaBeta(
            *about, None, None, None, None, "no instance has both known bytes and the times of all its ranks"
        )
    if sizes[-1] <= _RATIO * sizes[0]:
        return AlphaBeta(*about, None, None, None, None, "the sizes differ by a factor of two or less")
    alpha, beta = fit_line(size, seconds)
    expected = alpha + beta * size
    weight = seconds**-2
    mean = float((weight * seconds).sum() / weight.sum())
    spread = float((weight * (seconds - mean) ** 2).sum())
    r2 = 1 - float((weight * (seconds - expected) ** 2).sum()) / spread if spread else 0.0
    return AlphaBeta(*about, alpha, beta, r2, float(np.median(np.abs(seconds - expected) / expected)))


def fit_line(size: NDArray[np.int64], seconds: NDArray[np.float64]) -> tuple[float, float]:
    """Give latency and seconds per byte by least squares over the medians of each size.

    Errors are taken relative to the time, else large messages alone would set both; medians keep single slow ones
    out. Neither is let fall below 0.
    """
    sizes, which, count = np.unique(size, return_inverse=True, return_counts=True)
    median = np.array([np.median(seconds[which == i]) for i in range(len(sizes))])
    weight = np.sqrt(count) / median
    design = np.stack((np.ones(len(sizes)), sizes.astype(np.float64)), axis=1) * weight[:, None]
    (alpha, beta), *_ = np.linalg.lstsq(design / [1, sizes[-1]], median * weight, rcond=None)
    if alpha >= 0 and beta >= 0:
        return float(alpha), float(beta / sizes[-1])
    column = design[:, 1] if beta >= 0 else design[:, 0]
    alone = float(column @ (median * weight) / (column @ column))
    return (0.0, alone) if beta >= 0 else (alone, 0.0)
