"""Who kept the others waiting at a collective, what it cost them, and why.

A collective takes the rank that arrives last no longer than its transfer; every other rank waits besides. That tells
the last one and its lateness without a common clock. Why it was late shows in how it spent its time since the ranks
last began one together, beside how the others spent theirs.
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
"""What a rank was longer at than the others, by ``idle.Account``; ``passed_on`` is a wait for a third."""

_UNKNOWN = len(Account)
_MIN_LATE_NS = 20_000
"""Arrivals nearer to each other than this are together: kernels launched at once on several GPUs differ by as much."""
_EXPLAINED = 0.25
"""An account that holds less of the lateness than this is not its cause."""


@dataclass(frozen=True)
class Stragglers:
    """One row per collective at which one rank came last by more than 20 µs, in the order of the matches."""

    instance: Int64
    """Index into the matches."""
    device: NDArray[np.int32]
    """Index of the device that came last."""
    late_ns: Int64
    """How long after the first it came, on aligned clocks; where that can't be told, the longest wait of the others."""
    cost_ns: Int64
    """What it cost another rank, on average: the part of its wait that no compute hid."""
    cause: tuple[str, ...]
    """Of CAUSES."""

    def __len__(self) -> int:
        return len(self.instance)


def stragglers(
    matches: Matches,
    devices: Sequence[DeviceFigures],
    timing: Timing | None = None,
    clocks: Clocks | None = None,
) -> Stragglers:
    """Find who came last at each collective that all its ranks leave together, of those ranks that are here.

    Args:
        timing: how late each came, where the clocks can be compared; nothing to go by the others' waits alone.
        clocks: which ranks' collectives are not the same as the others' at all; nothing to believe them all.
    """
    found = [_of_set(matches, devices, timing, rows, members) for rows, members in _sets(matches, clocks)]
    columns = [np.concatenate(part) for part in zip(*found, strict=True)] if found else [np.empty(0, np.int64)] * 5
    order = np.argsort(columns[0], kind="stable")
    instance, device, late, cost, cause = (column[order].astype(np.int64) for column in columns)
    return Stragglers(instance, device.astype(np.int32), late, cost, tuple(CAUSES[code] for code in cause.tolist()))


def _sets(matches: Matches, clocks: Clocks | None) -> Iterator[tuple[Int64, Int64]]:
    """Give the instances of each set of devices, and the places of their members: an array of instances by devices."""
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
        # The last by duration and the first to start, on clocks that are told less well: then its wait tells more.
        known = timing.late_known[own_member] & (timing.late_ns[own_member] > 0)
        late = np.where(known, timing.late_ns[own_member], late)
    exposed, computed = np.empty_like(length), np.empty_like(length)
    spent = np.empty((*members.shape, 2, len(Account)), np.int64)
    for column, device in enumerate(matches.device[members[0]].tolist()):
        own = devices[device]
        mine = matches.index[members[:, column]]
        exposed[:, column] = own.shared_exposed()[mine]
        spent[:, column] = own.spent_ns[mine]
        computed[:, column] = _computed(own, mine)
    cost = (np.minimum(wait, exposed) * others).sum(axis=1) // count
    cause = _causes(spent, computed, last, others, typical)
    late_enough = typical >= _MIN_LATE_NS
    device_of = matches.device[members[np.arange(len(rows)), last]].astype(np.int64)
    return rows[late_enough], device_of[late_enough], late[late_enough], cost[late_enough], cause[late_enough]


def _causes(spent: Int64, computed: Int64, last: Int64, others: NDArray[np.bool_], late: Int64) -> Int64:
    """Compare how the last rank and the others spent their time since they began the collective before."""
    # Since it began, not since it ended: what the others computed under it, this rank may have had to do after it.
    before = np.concatenate((np.zeros_like(spent[:1, :, 0]), spent[:-1, :, 0]))
    excess = _excess(np.maximum(spent[:, :, 0] - before, 0), last, others)
    # A rank that computes before the collective what the others compute under it computes no longer than they do: its
    # compute is the cause only if it is ahead since the step began, too.
    ahead = _excess(computed[:, :, None], last, others)[:, 0]
    excess[:, Account.COMPUTE] = np.minimum(excess[:, Account.COMPUTE], ahead)
    rows = np.arange(len(excess))
    cause = excess.argmax(axis=1)
    explained = excess[rows, cause] >= _EXPLAINED * late
    return np.where(explained, cause, _UNKNOWN)


def _excess(passed: Int64, last: Int64, others: NDArray[np.bool_]) -> Int64:
    """Give by how much the last rank is beyond the others' median: instances by accounts, of those by devices."""
    theirs = np.median(passed[others].reshape(len(passed), -1, passed.shape[2]), axis=1)
    excess: Int64 = (passed[np.arange(len(passed)), last] - theirs).astype(np.int64)
    return excess


def _computed(device: DeviceFigures, mine: NDArray[np.int32]) -> Int64:
    """Give how long a device had computed since its step began, when each of its collectives *mine* did."""
    timeline, figures = device.timeline, device.split.figures
    compute = figures["forward_ns"] + figures["backward_ns"] + figures["optimizer_ns"] + figures["other_ns"]
    until = np.concatenate(([0], np.cumsum(compute)))
    step = timeline.step[timeline.collective >= 0][mine]
    since: Int64 = device.spent_ns[mine, 0, Account.COMPUTE] - until[np.maximum(step, 0)]
    return since
