"""Stragglers: which rank kept the others waiting at a collective, what it cost them, and why.

In a collective, the rank that arrives last only transfers; every other rank waits as well. This identifies the last
rank and its lateness without a common clock. The cause follows from how it spent its time since the ranks began the
previous collective, compared with the other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks import Clocks
from dptrace.analysis.cross_rank.transfers import Timing
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.analysis.per_gpu.idle import Account
from dptrace.core.intervals import Int64

__all__ = ["CAUSES", "Stragglers", "stragglers"]

CAUSES = (
    "compute",
    "passed_on",
    "memory_copies",
    "data_loading",
    "host_bound",
    "host_bound",
    "waiting",
    "bubble",
    "unknown",
)
"""What a rank spent more time on than the others, by ``idle.Account``; ``passed_on`` is a wait for a third rank."""

_UNKNOWN = len(Account)
_MIN_LATE_NS = 20_000
"""Smallest lateness that counts: kernels launched at the same time on several GPUs differ by as much."""
_EXPLAINED = 0.25
"""Smallest share of the lateness that makes an account its cause."""


@dataclass(frozen=True)
class Stragglers:
    """One row per collective at which a rank arrived last by more than 20 µs, in the order of the matches."""

    instance: Int64
    """Index into the matches."""
    device: NDArray[np.int32]
    """Index of the device that arrived last."""
    late_ns: Int64
    """Delay after the first arrival, on aligned clocks; if unknown, the longest wait of the others."""
    cost_ns: Int64
    """Mean cost for the other ranks: the exposed part of their wait."""
    cause: tuple[str, ...]
    """One of CAUSES each."""

    def __len__(self) -> int:
        return len(self.instance)


def stragglers(
    matches: Matches,
    devices: Sequence[DeviceFigures],
    timing: Timing | None = None,
    clocks: Clocks | None = None,
) -> Stragglers:
    """Find the last recorded rank at each synchronizing collective.

    Args:
        timing: lateness on aligned clocks; None to use only the waits of the other ranks.
        clocks: marks the devices whose collectives do not match the others'; None to trust all.
    """
    parts = [_of_set(matches, devices, timing, rows, members) for rows, members in _sets(matches, clocks)]
    columns = [np.concatenate(part) for part in zip(*parts, strict=True)] if parts else [np.empty(0, np.int64)] * 5
    order = np.argsort(columns[0], kind="stable")
    instance, device, late, cost, cause = (column[order].astype(np.int64) for column in columns)
    return Stragglers(instance, device.astype(np.int32), late, cost, tuple(CAUSES[code] for code in cause.tolist()))


def _sets(matches: Matches, clocks: Clocks | None) -> Iterator[tuple[Int64, Int64]]:
    """Yield for each set of devices its instances, and the indices of their members as instances × devices."""
    size = np.diff(matches.first)
    fits = np.ones(len(matches), np.bool_)
    if clocks is not None and len(matches):
        fits = ~np.logical_or.reduceat(clocks.misfit[matches.device], matches.first[:-1])
    wanted = np.flatnonzero(matches.synchronizing & fits & (size > 1))
    by_set: dict[bytes, list[int]] = {}
    for row in wanted.tolist():
        by_set.setdefault(matches.device[matches.first[row] : matches.first[row + 1]].tobytes(), []).append(row)
    for rows in by_set.values():
        index = np.array(rows, np.int64)
        yield index, matches.first[index][:, None] + np.arange(size[index[0]])


def _of_set(
    matches: Matches, devices: Sequence[DeviceFigures], timing: Timing | None, rows: Int64, members: Int64
) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    length = matches.end_ns[members] - matches.start_ns[members]
    wait = length - length.min(axis=1, keepdims=True)
    last = length.argmin(axis=1)
    others = np.arange(members.shape[1]) != last[:, None]
    count = members.shape[1] - 1
    typical = np.median(wait[others].reshape(-1, count), axis=1).astype(np.int64)
    late = wait.max(axis=1)
    if timing is not None:
        own_member = members[np.arange(len(rows)), last]
        # If the last by duration started first, the clocks are too uncertain and the wait is more reliable.
        known = timing.late_known[own_member] & (timing.late_ns[own_member] > 0)
        late = np.where(known, timing.late_ns[own_member], late)
    exposed, computed = np.empty_like(length), np.empty_like(length)
    spent = np.empty((*members.shape, 2, len(Account)), np.int64)
    for column, device in enumerate(matches.device[members[0]].tolist()):
        figures = devices[device]
        index = matches.index[members[:, column]]
        exposed[:, column] = figures.shared_exposed()[index]
        spent[:, column] = figures.spent_ns[index]
        computed[:, column] = _computed(figures, index)
    cost = (np.minimum(wait, exposed) * others).sum(axis=1) // count
    cause = _causes(spent, computed, last, others, typical)
    late_enough = typical >= _MIN_LATE_NS
    device_of = matches.device[members[np.arange(len(rows)), last]].astype(np.int64)
    return rows[late_enough], device_of[late_enough], late[late_enough], cost[late_enough], cause[late_enough]


def _causes(spent: Int64, computed: Int64, last: Int64, others: NDArray[np.bool_], late: Int64) -> Int64:
    """Compare how the last rank and the others spent their time since the start of the previous collective."""
    # Since its start, not its end: what the others computed under it, this rank may have computed after it.
    before = np.concatenate((np.zeros_like(spent[:1, :, 0]), spent[:-1, :, 0]))
    excess = _excess(np.maximum(spent[:, :, 0] - before, 0), last, others)
    # A rank that computes before the collective what the others compute under it has no extra work: compute is the
    # cause only if the rank has also computed longer since the step began.
    ahead = _excess(computed[:, :, None], last, others)[:, 0]
    excess[:, Account.COMPUTE] = np.minimum(excess[:, Account.COMPUTE], ahead)
    rows = np.arange(len(excess))
    cause = excess.argmax(axis=1)
    explained = excess[rows, cause] >= _EXPLAINED * late
    return np.where(explained, cause, _UNKNOWN)


def _excess(passed: Int64, last: Int64, others: NDArray[np.bool_]) -> Int64:
    """Return the last rank's excess over the median of the others: from instances × devices × accounts."""
    others_median = np.median(passed[others].reshape(len(passed), -1, passed.shape[2]), axis=1)
    excess: Int64 = (passed[np.arange(len(passed)), last] - others_median).astype(np.int64)
    return excess


def _computed(device: DeviceFigures, index: NDArray[np.int32]) -> Int64:
    """Return a device's compute between the start of the step and each of its collectives *index*, in ns."""
    timeline, figures = device.timeline, device.split.figures
    compute = figures["forward_ns"] + figures["backward_ns"] + figures["optimizer_ns"] + figures["other_ns"]
    until = np.concatenate(([0], np.cumsum(compute)))
    step = timeline.step[timeline.collective >= 0][index]
    since: Int64 = device.spent_ns[index, 0, Account.COMPUTE] - until[np.maximum(step, 0)]
    return since
