"""Stragglers: which rank kept the others waiting at a collective, and how long, as measured.

Why a rank was late, and what a step would gain without it, is the replay's to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks import Clocks
from dptrace.analysis.cross_rank.transfers import aligned_starts
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.columns import Columns
from dptrace.core.intervals import Int64, covered

# How late each rank arrived at each collective, and what that cost the ranks that were early.
#
# A rank's lateness is the lesser of two measures: how long it started after the first, on aligned clocks, and how much
# less it waited than the rank that waited longest. The second needs no common clock; the first, with the uncertainty of
# the clocks added, corrects it where a collective, such as an all-to-all, does not end on all ranks together.
#
# The widest gap in the sorted latenesses divides early from late ranks: usually one is late, but if all ranks but one
# are late, that one waits.

Floats = NDArray[np.float64]

_MIN_LATE_NS = 50_000
"""Smallest lateness that counts: kernels launched at the same time on several GPUs differ by less."""


def _sets(matches: Matches, clocks: Clocks | None) -> Iterator[tuple[Int64, Int64]]:
    """Yield for each set of devices its instances, and the indices of their members as instances × devices."""
    size = np.diff(matches.first)
    fits = np.ones(len(matches), np.bool_)
    if clocks is not None and len(matches):
        fits = ~np.logical_or.reduceat(clocks.misfit[matches.device], matches.first[:-1])
    wanted = np.flatnonzero(matches.synchronizing & matches.complete & fits & (size > 1))
    by_set: dict[bytes, list[int]] = {}
    for row in wanted.tolist():
        by_set.setdefault(matches.device[matches.first[row] : matches.first[row + 1]].tobytes(), []).append(row)
    for rows in by_set.values():
        index = np.array(rows, np.int64)
        yield index, matches.first[index][:, None] + np.arange(size[index[0]])


def _divide(after_first: Int64, least: int) -> tuple[NDArray[np.bool_], Int64]:
    """Divide each row at its widest gap, if that is at least *least* ns; return who is early, and the lateness.

    >>> early, late = _divide(np.array([[0, 5, 90_000]]), 50_000)
    >>> early.tolist(), late.tolist()
    ([[True, True, False]], [[0, 0, 89998]])
    """
    order = np.argsort(after_first, axis=1, kind="stable")
    ranked = np.take_along_axis(after_first, order, axis=1)
    gaps = np.diff(ranked, axis=1)
    widest = gaps.argmax(axis=1)
    divided = gaps[np.arange(len(gaps)), widest] >= least
    last_early = np.where(divided, widest, ranked.shape[1] - 1)
    early_ranked = np.arange(ranked.shape[1]) <= last_early[:, None]
    early = np.empty_like(early_ranked)
    np.put_along_axis(early, order, early_ranked, axis=1)
    # The median of the first m of a sorted row.
    rows, half = np.arange(len(ranked)), last_early
    floor = (ranked[rows, half // 2] + ranked[rows, (half + 1) // 2]) // 2
    late = np.where(early, 0, after_first - floor[:, None])
    return early, late


def _shares(late: Int64) -> Floats:
    """Share each row's largest lateness among its late ranks: each increment among those at least that late.

    This is the airport game's Shapley value: with latenesses 2 and 6, the first two are shared, the other four are the
    later rank's alone: 1 and 5.
    """
    order = np.argsort(late, axis=1, kind="stable")
    ranked = np.take_along_axis(late, order, axis=1)
    increments = np.diff(ranked, axis=1, prepend=0)
    among = ranked.shape[1] - np.arange(ranked.shape[1])
    shares = np.empty(late.shape, np.float64)
    np.put_along_axis(shares, order, np.cumsum(increments / among, axis=1), axis=1)
    return np.where(late > 0, shares, 0.0)


def _scale(late: Int64, early: NDArray[np.bool_], exposed: Int64) -> Floats:
    """Return the factor that caps a row's cost at the mean exposed wait of its early ranks."""
    wait = np.where(early, exposed, 0).sum(axis=1) / early.sum(axis=1)
    most: Floats = np.minimum(wait / np.maximum(late.max(axis=1), 1), 1.0)
    return most


def _exposed_wait(
    matches: Matches, devices: Sequence[DeviceFigures], own: Sequence[int], members: Int64, wait: Int64
) -> Int64:
    """Return the part of each wait that no compute hides; concurrent collectives share it."""
    exposed = np.empty_like(wait)
    for column, device in enumerate(own):
        figures, start = devices[device], matches.start_ns[members[:, column]]
        within = covered(figures.exposed, start + wait[:, column]) - covered(figures.exposed, start)
        shared = figures.shared_exposed()[matches.index[members[:, column]]]
        exposed[:, column] = np.minimum(within, shared)
    return exposed


class Stragglers(Columns, frozen=True, dict=True):
    """One row per rank that was late at a collective, in the order of the matches."""

    instance: Int64
    """Index into the matches."""
    device: NDArray[np.int32]
    """Index of the late device."""
    late_ns: Int64
    """Lateness after the median early rank."""
    waited_ns: Int64
    """How long the mean early rank waited for it: exposed wait, shared among the late ranks."""

    def latest(self, instances: int) -> NDArray[np.int32]:
        """Return the latest device at each of this many collectives; -1 where none was late."""
        latest = np.full(instances, -1, np.int32)
        order = np.argsort(self.late_ns, kind="stable")
        latest[self.instance[order]] = self.device[order]
        return latest


def stragglers(
    matches: Matches, devices: Sequence[DeviceFigures], clocks: Clocks | None = None, align: bool = True
) -> Stragglers:
    """Find the ranks that were late at each synchronizing collective of which all ranks are recorded.

    Args:
        clocks: offsets of the devices' clocks; None to use the waits alone.
        align: compare starts on aligned clocks; otherwise use the waits alone.
    """
    start = aligned_starts(matches, clocks) if clocks is not None else matches.start_ns
    parts = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    for rows, members in _sets(matches, clocks):
        own = matches.device[members[0]].astype(np.int64)
        length = matches.end_ns[members] - matches.start_ns[members]
        wait = length - length.min(axis=1, keepdims=True)
        after_first = wait.max(axis=1, keepdims=True) - wait
        if clocks is not None and align:
            by_clock = start[members] - start[members].min(axis=1, keepdims=True)
            after_first = np.minimum(after_first, by_clock + int(clocks.uncertainty_ns[own].max()))
        early, late = _divide(after_first, _MIN_LATE_NS)
        exposed = _exposed_wait(matches, devices, own.tolist(), members, wait)
        waited = _shares(late) * _scale(late, early, exposed)[:, None]
        row, column = np.nonzero(late)
        parts.append((rows[row], own[column], late[row, column], waited[row, column]))
    instance, device, late_ns, waited_ns = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((late_ns, instance))
    found = Stragglers(instance, device.astype(np.int32), late_ns, np.rint(waited_ns).astype(np.int64))
    return found.take(order)
