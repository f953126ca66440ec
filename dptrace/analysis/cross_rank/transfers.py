"""Wait, transfer time and bandwidth of each collective, and the rank that arrived last."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks.estimate import UNKNOWN_NS, Clocks
from dptrace.analysis.matching.match import Matches
from dptrace.core.intervals import Int64
from dptrace.model.collectives import bus_factor

__all__ = ["Timing", "aligned_starts", "timing"]


class Timing(msgspec.Struct, frozen=True, dict=True):
    """One entry per instance of the matches, or per member of one.

    Only complete instances have figures: where ranks are missing, all others may have waited for them.
    """

    transfer_ns: Int64
    """Per instance: the shortest duration among its members, since the last to arrive does not wait; UNKNOWN_NS if it
    is not complete."""
    wait_ns: Int64
    """Per member: its duration minus the transfer; UNKNOWN_NS if the instance is not complete or not synchronizing."""
    late_ns: Int64
    """Per member: its start after the first member's, on aligned clocks."""
    late_known: NDArray[np.bool_]
    """Per member: whether the instance is complete and the lateness exceeds the uncertainty of the clocks."""
    last: NDArray[np.int32]
    """Per instance: the device that arrived last; -1 if unknown."""
    algbw: NDArray[np.float64]
    """Per instance: message bytes / transfer time, in bytes per second; NaN if bytes or time are unknown."""
    busbw: NDArray[np.float64]
    """Per instance: bus bandwidth, comparable between kinds and numbers of ranks, in bytes per second."""


def timing(matches: Matches, clocks: Clocks) -> Timing:
    """Separate wait from transfer, which needs no common clock, and find the last to arrive, which does.

    Both are given for complete instances only, and waits for kinds in which ranks wait for each other. The last to
    arrive has the shortest duration in a synchronizing collective, and otherwise the latest start. It is
    known only if it differs from the next by more than the uncertainty of the two clocks.
    """
    length = matches.end_ns - matches.start_ns
    low = matches.first[:-1]
    shortest = np.minimum.reduceat(length, low) if len(matches) else np.empty(0, np.int64)
    transfer = np.where(matches.complete, shortest, UNKNOWN_NS)
    waits = (matches.complete & matches.synchronizing)[matches.instance]
    start = aligned_starts(matches, clocks)
    by_start = np.lexsort((start, matches.instance))
    earliest = by_start[low][matches.instance]
    late = start - start[earliest]
    unsure = clocks.between(matches.device, matches.device[earliest])
    with np.errstate(divide="ignore", invalid="ignore"):
        # A group of one rank sends nothing.
        sent = (matches.bytes > 0) & (transfer > 0) & (matches.size > 1)
        algbw = np.where(sent, matches.bytes / (transfer * 1e-9), np.nan)
    return Timing(
        transfer_ns=transfer,
        wait_ns=np.where(waits, length - transfer[matches.instance], UNKNOWN_NS),
        late_ns=late,
        late_known=matches.complete[matches.instance]
        & (unsure != UNKNOWN_NS)
        & ((late > unsure) | (matches.device == matches.device[earliest])),
        last=_last(matches, clocks, np.where(matches.synchronizing[matches.instance], length, -start)),
        algbw=algbw,
        busbw=algbw * _factors(matches),
    )


def aligned_starts(matches: Matches, clocks: Clocks) -> Int64:
    """Return when each member of the matches began, on its reference's clock, in ns."""
    start = matches.start_ns.copy()
    by_device = np.argsort(matches.device, kind="stable")
    bounds = np.searchsorted(matches.device[by_device], np.arange(len(matches.device_ids) + 1))
    for device in range(len(matches.device_ids)):
        members = by_device[bounds[device] : bounds[device + 1]]
        start[members] = clocks.align(device, start[members])
    return start


def _last(matches: Matches, clocks: Clocks, values: Int64) -> NDArray[np.int32]:
    """Return each complete instance's device with the smallest value; -1 if the next is within the uncertainty."""
    last = np.full(len(matches), -1, np.int32)
    several = matches.complete & (np.diff(matches.first) > 1)
    order = np.lexsort((values, matches.instance))
    low = matches.first[:-1][several]
    smallest, second = order[low], order[low + 1]
    unsure = clocks.between(matches.device[smallest], matches.device[second])
    certain = (unsure != UNKNOWN_NS) & (values[second] - values[smallest] > unsure)
    last[several] = np.where(certain, matches.device[smallest], -1)
    return last


def _factors(matches: Matches) -> NDArray[np.float64]:
    kinds, code = np.unique(matches.kind.astype(str), return_inverse=True)
    width = int(matches.size.max(initial=1)) + 1
    pairs, which = np.unique(code.astype(np.int64) * width + matches.size, return_inverse=True)
    factors = [bus_factor(str(kinds[pair // width]), max(pair % width, 1)) for pair in pairs.tolist()]
    by_instance: NDArray[np.float64] = np.array(factors, np.float64)[which]
    return by_instance
