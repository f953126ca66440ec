"""The alpha-beta model of each kind of collective, fitted to the transfer times of the run."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.transfers import Timing
from dptrace.analysis.matching.match import Matches
from dptrace.core.intervals import median, unique
from dptrace.model.alpha_beta import MIN_SIZE_RATIO, Line, r_squared, weighted_line
from dptrace.model.collectives import bus_factor

__all__ = ["AlphaBeta", "alpha_beta"]


class AlphaBeta(msgspec.Struct, frozen=True):
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
    def line(self) -> Line | None:
        """The fitted line; None without a fit."""
        if self.alpha_s is None or self.beta_s_per_byte is None:
            return None
        return Line(self.alpha_s, self.beta_s_per_byte)

    @property
    def crossover_bytes(self) -> float | None:
        """Size at which latency and transfer take equally long; smaller messages are mostly latency."""
        return self.line.crossover_bytes if self.line else None

    def seconds(self, size: int) -> float | None:
        """Return the time of a message of *size* bytes, or None without a fit."""
        return self.line.seconds(size) if self.line else None

    def busbw(self, size: int) -> float | None:
        """Return the bus bandwidth of a message of *size* bytes in bytes per second, or None without a fit."""
        seconds = self.seconds(size)
        return bus_factor(self.kind, self.ranks) * size / seconds if seconds else None


def alpha_beta(matches: Matches, timing: Timing) -> tuple[AlphaBeta, ...]:
    """Fit each kind of collective in each group.

    Only instances with known bytes and with all ranks recorded count: the transfer time of others is unknown.
    """
    usable = matches.complete & (matches.bytes > 0) & (timing.transfer_ns > 0) & (matches.size > 1)
    fits = []
    for kind, group in sorted(set(zip(matches.kind.tolist(), matches.group.tolist(), strict=True))):
        instances = np.flatnonzero((matches.kind == kind) & (matches.group == group))
        good = instances[usable[instances]]
        ranks = int(matches.size[instances].max())
        fits.append(
            _fit(str(kind), int(group), ranks, matches.bytes[good], timing.transfer_ns[good].astype(np.float64) * 1e-9)
        )
    return tuple(fits)


def _fit(kind: str, group: int, ranks: int, size: NDArray[np.int64], seconds: NDArray[np.float64]) -> AlphaBeta:
    sizes = unique(size)
    about = kind, group, ranks, len(size), len(sizes)
    if not len(size):
        return AlphaBeta(
            *about, None, None, None, None, "no instance has both known bytes and the times of all its ranks"
        )
    if sizes[-1] <= MIN_SIZE_RATIO * sizes[0]:
        return AlphaBeta(*about, None, None, None, None, "the sizes differ by a factor of two or less")
    line = _line_through_medians(size, seconds)
    expected = line.alpha_s + line.beta_s_per_byte * size.astype(np.float64)
    deviation = float(median(np.abs(seconds - expected) / expected))
    return AlphaBeta(*about, line.alpha_s, line.beta_s_per_byte, r_squared(seconds, expected, seconds**-2), deviation)


def _line_through_medians(size: NDArray[np.int64], seconds: NDArray[np.float64]) -> Line:
    """Fit a line to the median time of each size.

    Errors are relative to the time, or large messages alone would determine the line. Medians remove single slow
    instances.
    """
    sizes, which, count = np.unique(size, return_inverse=True, return_counts=True)
    typical = np.array([median(seconds[which == i]) for i in range(len(sizes))])
    return weighted_line(sizes, typical, np.sqrt(count) / typical)
