"""Clock offsets between ranks, from the ends of the synchronizing collectives they share."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, median

__all__ = ["READ_NS", "Offset", "SharedCollectives", "estimate_drift", "estimate_offset", "estimate_offsets"]

_FLOOR_NS = 1_000
"""Least uncertainty between two clocks: older traces round to whole microseconds."""
READ_NS = 10_000
"""Uncertainty of a shared clock: each process reads it through a counter that it calibrates itself."""
_FEW, _DRIFTS = 3, 8
"""Fewest points for a scatter, and for a slope."""


class Offset(msgspec.Struct, frozen=True):
    """How far one clock is ahead of another."""

    ahead_ns: float
    """At the time ``at_ns``."""
    drift: float
    """Change of the offset per ns; 0 unless it is significant."""
    at_ns: int
    uncertainty_ns: float
    count: int
    """Number of collectives it is the median of."""
    agrees: bool = False
    """Whether both clocks, as they are, have no rank leave a collective before all others have arrived."""

    def ahead_at(self, times: Int64) -> NDArray[np.float64]:
        """Return how far the clock is ahead at times on this clock, in ns."""
        ahead: NDArray[np.float64] = self.ahead_ns + self.drift * (times - self.at_ns).astype(np.float64)
        return ahead

    def chain(self, other: Offset) -> Offset:
        """Chain the offset from A to B with *other*, from B to C."""
        count = min(self.count, other.count) if self.count else other.count
        ahead = self.ahead_ns + other.ahead_ns + self.drift * (other.at_ns - self.at_ns)
        uncertainty = self.uncertainty_ns + other.uncertainty_ns
        agrees = self.agrees and other.agrees
        return Offset(ahead, self.drift + other.drift, other.at_ns, uncertainty, count, agrees)


class SharedCollectives(msgspec.Struct, frozen=True):
    """Starts and ends, in ns, of the collectives that two devices share."""

    start_ns: Int64
    end_ns: Int64
    other_start_ns: Int64
    other_end_ns: Int64


def estimate_offset(shared: SharedCollectives) -> Offset:
    """Estimate how far the other's clock is ahead.

    The ends differ only by the time the last chunk takes to arrive, so the offset is the median of their differences
    over the shorter half of the transfers: late starts and a few outliers do not matter. A drift is reported only if it
    moves the offset further than the differences scatter. The uncertainty is twice that scatter, since a ring may
    always serve the same rank last; or, if smaller, the range that causality allows: no rank can leave a synchronizing
    collective before every other has arrived.
    """
    quiet = _quiet(shared)
    time = shared.other_end_ns
    difference = (time - shared.end_ns).astype(np.float64)
    ahead, drift, middle = estimate_drift(time[quiet], difference[quiet])
    moment = (time - middle).astype(np.float64)
    level = (difference - drift * moment)[quiet]
    scatter = 2 * _scatter(level) * (1 + 4 / len(level)) if len(level) >= _FEW else np.inf
    low, high = _causal(shared, drift * moment)
    if low <= high:
        ahead = min(max(ahead, low), high)
        # At least one scatter: an undetected drift makes the bounds too narrow.
        least = scatter / 2 if np.isfinite(scatter) else 0.0
        scatter = max(least, min(scatter, max(high - ahead, ahead - low)))
    elif not np.isfinite(scatter):
        scatter = low - high
    # Of enough collectives, one may be matched with another one's.
    first, last = _causal(shared, np.zeros(len(time)), least_spare=int(len(time) >= _DRIFTS))
    agrees = first <= READ_NS and last >= -READ_NS
    return Offset(ahead, drift, middle, max(scatter, _FLOOR_NS), len(level), agrees)


def _quiet(shared: SharedCollectives) -> NDArray[np.bool_]:
    """Choose the half with the shortest transfers: long transfers end less evenly."""
    own, other = shared.end_ns - shared.start_ns, shared.other_end_ns - shared.other_start_ns
    shorter = np.minimum(own, other)
    kept = min(max(len(shorter) // 2, _DRIFTS), len(shorter))
    quiet: NDArray[np.bool_] = shorter <= np.sort(shorter)[kept - 1]
    return quiet


def estimate_drift(time: Int64, difference: NDArray[np.float64]) -> tuple[float, float, int]:
    """Return the differences' level at the middle of the time, their slope if significant (else 0), and that middle."""
    middle = (int(time.min()) + int(time.max())) // 2
    moment = (time - middle).astype(np.float64)
    drift = _drift(moment, difference)
    return float(median(difference - drift * moment)), drift, middle


def _scatter(values: NDArray[np.float64]) -> float:
    """Return the standard deviation of a normal distribution with this median absolute deviation."""
    return 1.4826 * float(median(np.abs(values - median(values))))


def _causal(shared: SharedCollectives, drifted: NDArray[np.float64], least_spare: int = 0) -> tuple[float, float]:
    """Return the bounds of the offset beyond which a rank would have left before another arrived.

    The tightest one percent of the collectives is ignored: a wrong bound is worse than a loose one.
    """
    upper = np.sort(shared.other_end_ns - shared.start_ns - drifted)
    lower = np.sort(shared.other_start_ns - shared.end_ns - drifted)
    spare = max(least_spare, len(upper) // 100)
    return float(lower[-1 - spare]), float(upper[spare])


def _drift(moment: NDArray[np.float64], difference: NDArray[np.float64]) -> float:
    """Return the slope if it is significant, else 0: the median over pairs half the capture apart."""
    half = len(moment) // 2
    if len(moment) < _DRIFTS:
        return 0.0
    order = np.argsort(moment, kind="stable")
    moment, difference = moment[order], difference[order]
    run = moment[-half:] - moment[:half]
    if (run <= 0).any():
        return 0.0
    slopes = (difference[-half:] - difference[:half]) / run
    slope = float(median(slopes))
    moved = abs(slope) * float(moment[-1] - moment[0])
    error = 1.25 * _scatter(slopes) / np.sqrt(half)
    certain = abs(slope) > 4 * error and moved > max(3 * _scatter(difference - slope * moment), 2 * _FLOOR_NS)
    return slope if certain else 0.0


def estimate_offsets(
    instance: Int64, device: NDArray[np.int32], start_ns: Int64, end_ns: Int64, devices: int
) -> tuple[list[Offset], list[int]]:
    """Compare the devices' clocks, through other devices if two share no collective.

    Args:
        instance, device, start_ns, end_ns: one row per member of a synchronizing collective; times in ns.

    Returns:
        For each device how far its clock is ahead of its reference's, and which device that is: the first device
        connected to it through shared collectives; itself if it shares none.
    """
    order = np.lexsort((device, instance))
    table = instance[order], device[order], start_ns[order], end_ns[order]
    by_device = np.argsort(table[1], kind="stable")
    rows = np.split(by_device, np.searchsorted(table[1][by_device], np.arange(1, devices)))
    found: list[Offset | None] = [None] * devices
    reference = list(range(devices))
    for start in range(devices):
        if found[start] is not None:
            continue
        found[start] = Offset(0.0, 0.0, int(end_ns[0]) if len(end_ns) else 0, 0.0, 0, agrees=True)
        level = [start]
        while level:
            level = _next_level(level, rows, table, found)
            for other in level:
                reference[other] = start
    return [offset for offset in found if offset is not None], reference


_Table = tuple[Int64, NDArray[np.int32], Int64, Int64]


def _next_level(level: Sequence[int], rows: Sequence[Int64], table: _Table, found: list[Offset | None]) -> list[int]:
    """Find the offsets of all devices that share collectives with this level; return these devices."""
    fresh: dict[int, Offset] = {}
    missing = np.array([offset is None for offset in found])
    for hub in level if missing.any() else ():
        base = found[hub]
        assert base is not None
        for other, shared in _neighbors(rows[hub], table, missing):
            chained = base.chain(estimate_offset(shared))
            if other not in fresh or chained.uncertainty_ns < fresh[other].uncertainty_ns:
                fresh[other] = chained
    for other, offset in fresh.items():
        found[other] = offset
    return sorted(fresh)


def _neighbors(rows: Int64, table: _Table, missing: NDArray[np.bool_]) -> list[tuple[int, SharedCollectives]]:
    """Return, for each *missing* device, the collectives it shares with the device of *rows*."""
    instance, device, start_ns, end_ns = table
    low = np.searchsorted(instance, instance[rows], side="left")
    size = np.searchsorted(instance, instance[rows], side="right") - low
    own = np.repeat(rows, size)
    other = np.arange(len(own)) - np.repeat(np.cumsum(size) - size, size) + np.repeat(low, size)
    chosen = missing[device[other]]
    own, other = own[chosen], other[chosen]
    order = np.argsort(device[other], kind="stable")
    own, other = own[order], other[order]
    which, first = np.unique(device[other], return_index=True)
    parts = zip(np.split(own, first[1:]), np.split(other, first[1:]), strict=True)
    return [
        (int(d), SharedCollectives(start_ns[a], end_ns[a], start_ns[b], end_ns[b]))
        for d, (a, b) in zip(which, parts, strict=False)
    ]
