"""Sums, quantiles and shares of groups of device time, over the pieces of all ranks at once."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64

__all__ = ["Pieces", "Statistics", "join", "statistics"]


class Pieces(msgspec.Struct, frozen=True):
    """Pieces of device time, each of one group, call and rank; one entry per piece in each column."""

    group: Int64
    instance: Int64
    """Number of the call, unique among all ranks."""
    rank: Int64
    """Index of the device."""
    ns: Int64
    start_ns: Int64
    end_ns: Int64
    """Start and end; on a CPU, those of the interval around it."""
    kind: NDArray[np.uint8]
    phase: NDArray[np.uint8]
    in_step: NDArray[np.bool_]
    delay_ns: Int64
    """Time from its launch to its start; -1 where unknown."""
    exposed_ns: Int64
    """Time of a collective without compute, each on its own; 0 for what is no collective."""
    recompute: NDArray[np.bool_]
    nested: NDArray[np.bool_]
    """Whether it is a part of an interval, so that times add up and do not overlap."""


def join(parts: list[Pieces]) -> Pieces:
    """Put the pieces of several ranks together."""
    columns: dict[str, Any] = {
        column: np.concatenate([getattr(part, column) for part in parts]) if parts else np.empty(0, np.int64)
        for column in Pieces.__struct_fields__
    }
    return Pieces(**columns)


class Statistics(msgspec.Struct, frozen=True):
    """Figures of each group; one entry per group in each column."""

    count: Int64
    """Calls."""
    recompute_count: Int64
    """Those that repeat forward work in backward."""
    kernels: Int64
    """Device intervals; on a CPU, pieces of them."""
    total_ns: Int64
    """Sum of durations."""
    kernel_ns: Int64
    """The same, but pieces of one call that run at the same time count once."""
    exposed_ns: Int64
    """Sum of the exposed times of collectives."""
    recompute_ns: Int64
    """Sum of what repeats forward work in backward."""
    step_ns: Int64
    """The part of total_ns launched within steps."""
    mean_ns: NDArray[np.float64]
    p50_ns: NDArray[np.float64]
    p95_ns: NDArray[np.float64]
    """Of calls, by their time in kernel_ns."""
    by_kind: Int64
    """total_ns by kind: [group, kind]."""
    by_phase: Int64
    """total_ns of compute by phase: [group, phase]."""
    delay_ns: NDArray[np.float64]
    """Median of the known launch delays; NaN without any."""
    by_rank: Int64
    """total_ns by device: [group, device]."""


def statistics(pieces: Pieces, groups: int, ranks: int) -> Statistics:
    """Compute the figures of *groups* groups over *ranks* devices."""
    by_kind, by_phase, by_rank = (np.zeros((groups, size), np.int64) for size in (3, 4, ranks))
    np.add.at(by_kind, (pieces.group, pieces.kind), pieces.ns)
    compute = pieces.kind == 0
    np.add.at(by_phase, (pieces.group[compute], pieces.phase[compute]), pieces.ns[compute])
    np.add.at(by_rank, (pieces.group, pieces.rank), pieces.ns)
    total, exposed, again_ns, in_step = (
        _sums(pieces.group, values, groups)
        for values in (pieces.ns, pieces.exposed_ns, pieces.ns * pieces.recompute, pieces.ns * pieces.in_step)
    )
    owner, busy, again = _calls(pieces)
    count = np.bincount(owner, minlength=groups)
    kernel = _sums(owner, busy, groups)
    known = pieces.delay_ns >= 0
    middle, late = _quantiles(owner, busy, groups, (0.5, 0.95))
    (delay,) = _quantiles(pieces.group[known], pieces.delay_ns[known], groups, (0.5,))
    return Statistics(
        count=count,
        recompute_count=np.bincount(owner[again], minlength=groups),
        kernels=np.bincount(pieces.group, minlength=groups),
        total_ns=total,
        kernel_ns=kernel,
        exposed_ns=exposed,
        recompute_ns=again_ns,
        step_ns=in_step,
        mean_ns=kernel / np.maximum(count, 1),
        p50_ns=middle,
        p95_ns=late,
        by_kind=by_kind,
        by_phase=by_phase,
        delay_ns=delay,
        by_rank=by_rank,
    )


def _sums(group: Int64, values: Int64, groups: int) -> Int64:
    found = np.zeros(groups, np.int64)
    np.add.at(found, group, values)
    return found


def _calls(pieces: Pieces) -> tuple[Int64, Int64, NDArray[np.bool_]]:
    """Return the group and the busy time of each call, and whether it is recomputation.

    Within a call, what an earlier piece covers already does not count again. Ends are ranks of times, and calls follow
    each other, so that the reach of one call never covers the next::

        call 0 [0, 10) [5, 12) → 10 + 2    call 1 [3, 4) → 1
    """
    if not len(pieces.group):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_)
    _, call = np.unique(pieces.instance, return_inverse=True)
    # A call in two groups (its pieces in two phases) is one call of each.
    order = np.lexsort((pieces.start_ns, call.reshape(-1), pieces.group))
    call, group = call.reshape(-1)[order], pieces.group[order]
    first = np.append(True, (call[1:] != call[:-1]) | (group[1:] != group[:-1]))
    number = np.cumsum(first) - 1
    start, end, ns = pieces.start_ns[order], pieces.end_ns[order], pieces.ns[order]
    times, rank = np.unique(end, return_inverse=True)
    reach = np.maximum.accumulate(number * len(times) + rank.reshape(-1))
    before = np.append(0, times[reach[:-1] % len(times)])
    covered = np.maximum(end - np.where(first, start, np.maximum(start, before)), 0)
    own = np.where(pieces.nested[order], ns, covered)
    edges = np.flatnonzero(first)
    again = np.logical_or.reduceat(pieces.recompute[order], edges)
    return group[edges], np.add.reduceat(own, edges), again


def _quantiles(group: Int64, values: Int64, groups: int, wanted: tuple[float, ...]) -> list[NDArray[np.float64]]:
    """Return quantiles of each group's values, interpolated linearly; NaN for a group without values."""
    order = np.lexsort((values, group))
    ordered, edges = values[order], np.searchsorted(group[order], np.arange(groups + 1))
    count, found = np.diff(edges), []
    for quantile in wanted:
        place = edges[:-1] + quantile * np.maximum(count - 1, 0)
        low = np.minimum(np.floor(place).astype(np.int64), max(len(ordered) - 1, 0))
        high = np.minimum(np.ceil(place).astype(np.int64), max(len(ordered) - 1, 0))
        value = np.full(groups, np.nan)
        some = count > 0
        if some.any():
            part = place[some] - low[some]
            value[some] = ordered[low[some]] * (1 - part) + ordered[high[some]] * part
        found.append(value)
    return found
