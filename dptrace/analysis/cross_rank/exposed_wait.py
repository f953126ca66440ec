"""Exposed communication that is waiting for later ranks, and that of collectives whose waiting is unknown.

::

    rank 0   compute ███░░░░░░░░▒▒▒▒   all-reduce: waits, then transfers
    rank 1   compute ███████████▒▒▒▒   arrives last: only transfers
                        └ wait ┘└ transfer: the shortest duration among the ranks
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks.estimate import Clocks
from dptrace.analysis.cross_rank.transfers import Timing
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import Int64, IntervalSet, covered, intersect, subtract, union

__all__ = [
    "WAIT_FIGURES",
    "CallWaits",
    "ExposedWait",
    "WaitFigures",
    "exposed_parts",
    "exposed_waits",
    "sum_of_waits",
    "waits_by_rank",
]

WAIT_FIGURES = ("exposed_wait_ns", "exposed_unmatched_ns")
"""The figures next to ``exposed_comm_ns`` in every table."""


class WaitFigures(msgspec.Struct, frozen=True):
    """Parts of the exposed communication of each step; arrays of one entry per step."""

    wait_ns: Int64
    """Waiting for later ranks; 0 where it is not known."""
    known: NDArray[np.bool_]
    """Whether any collective of the step shows how long it waited."""
    unmatched_ns: Int64
    """Exposed time of collectives that lack a rank of their group, so that their waiting is unknown."""

    def step(self, number: int) -> dict[str, int | None]:
        """Return the figures of one step by the names in WAIT_FIGURES; the wait is None where it is not known."""
        wait = int(self.wait_ns[number]) if self.known[number] else None
        return {"exposed_wait_ns": wait, "exposed_unmatched_ns": int(self.unmatched_ns[number])}

    def mean(self) -> dict[str, float | None]:
        """Return the means over the steps; the wait is None if it is not known in any step."""
        steps = max(len(self.known), 1)
        return {name: None if ns is None else ns / steps for name, ns in self.total().items()}

    def cut(self, steps: slice) -> WaitFigures:
        """Keep some steps."""
        return WaitFigures(self.wait_ns[steps], self.known[steps], self.unmatched_ns[steps])

    def total(self) -> dict[str, int | None]:
        """Return the sums over the steps; the wait is None if it is not known in any step."""
        wait = int(self.wait_ns.sum()) if self.known.any() else None
        return {"exposed_wait_ns": wait, "exposed_unmatched_ns": int(self.unmatched_ns.sum())}


def sum_of_waits(figures: Iterable[WaitFigures]) -> dict[str, int | None]:
    """Return the sums over devices and steps by the names in WAIT_FIGURES; the wait is None if it is known nowhere."""
    totals = [one.total() for one in figures]
    waits = [wait for total in totals if (wait := total["exposed_wait_ns"]) is not None]
    unmatched = sum(total["exposed_unmatched_ns"] or 0 for total in totals)
    return {"exposed_wait_ns": sum(waits) if waits else None, "exposed_unmatched_ns": unmatched}


def exposed_parts(exposed_ns: float, waits: Mapping[str, float | None]) -> dict[str, float]:
    """Divide exposed communication into waiting, transfer and what lacks a rank.

    Args:
        exposed_ns: the exposed communication.
        waits: its figures by the names in WAIT_FIGURES.

    Returns:
        The parts, which add up to *exposed_ns*; the whole of it where no wait is known.

    >>> exposed_parts(10, {"exposed_wait_ns": 7, "exposed_unmatched_ns": 1})
    {'exposed_wait_ns': 7, 'exposed_transfer_ns': 2, 'exposed_unmatched_ns': 1}
    >>> exposed_parts(10, {"exposed_wait_ns": None, "exposed_unmatched_ns": 10})
    {'exposed_comm_ns': 10}
    """
    wait, unmatched = waits["exposed_wait_ns"], waits["exposed_unmatched_ns"] or 0
    if wait is None:
        return {"exposed_comm_ns": exposed_ns}
    transfer = exposed_ns - wait - unmatched
    return {"exposed_wait_ns": wait, "exposed_transfer_ns": transfer, "exposed_unmatched_ns": unmatched}


class CallWaits(msgspec.Struct, frozen=True):
    """Waiting of each collective of a device, in the order of its timeline; -1 where it is not known."""

    wait_ns: Int64
    """Duration beyond the transfer, at the start of the interval."""
    exposed_ns: Int64
    """The part of the wait without compute."""
    waits_for: NDArray[np.int32]
    """Rank that arrived last, if more than half of the wait was for it alone; else -1."""

    def rows(self) -> list[dict[str, int | None]]:
        """Return the exposed wait of each collective and the rank that it was for; None where not known."""
        return [
            {"exposed_wait_ns": exposed if exposed >= 0 else None, "waits_for": rank if rank >= 0 else None}
            for exposed, rank in zip(self.exposed_ns.tolist(), self.waits_for.tolist(), strict=True)
        ]


class ExposedWait(WaitFigures, frozen=True):
    """Waiting in the exposed communication of one device."""

    intervals: IntervalSet
    """When the device waited without computing, on its own clock, in ns."""
    by_kind: dict[str, WaitFigures]
    """By kind of collective; concurrent kinds may wait at the same time."""
    calls: CallWaits
    """Each collective on its own; concurrent collectives may wait at the same time."""
    waits_for: NDArray[np.int32]
    """Of each step: the rank that more than half of its exposed wait was for; -1 where no rank stands out."""

    def select(self, steps: slice, calls: NDArray[np.bool_]) -> ExposedWait:
        """Keep some steps, and the collectives that a mask selects."""
        kept = CallWaits(self.calls.wait_ns[calls], self.calls.exposed_ns[calls], self.calls.waits_for[calls])
        whole = self.cut(steps)
        by_kind = {kind: figures.cut(steps) for kind, figures in self.by_kind.items()}
        return ExposedWait(
            whole.wait_ns, whole.known, whole.unmatched_ns, self.intervals, by_kind, kept, self.waits_for[steps]
        )

    def waits_for_most(self) -> int | None:
        """Return the rank that more than half of the exposed wait of all steps was for; None if there is none."""
        ranks, code = np.unique(self.waits_for, return_inverse=True)
        waits = np.zeros(len(ranks), np.int64)
        np.add.at(waits, code, np.where(self.waits_for >= 0, self.wait_ns, 0))
        stands_out = ranks[2 * waits > self.wait_ns.sum()]
        return int(stands_out[0]) if len(stands_out) else None


def exposed_waits(
    matches: Matches, timing: Timing, clocks: Clocks, devices: Sequence[DeviceFigures]
) -> tuple[ExposedWait, ...]:
    """Separate waiting from transfer in each device's exposed communication.

    The wait of a rank in a matched, synchronizing collective is its duration minus the transfer, and lies at the start
    of its interval; no common clock is needed.

    Args:
        matches: the collectives across ranks, with one device per entry of *devices*.
        timing: their transfer times.
        clocks: marks the devices whose collectives do not match the others'.
        devices: the figures of each GPU.
    """
    order = np.argsort(matches.device, kind="stable")
    bounds = np.searchsorted(matches.device[order], np.arange(len(devices) + 1))
    waits_for = _waits_for(matches)
    known, lacking = _known_and_lacking(matches, clocks)
    waits = []
    for number, device in enumerate(devices):
        members = order[bounds[number] : bounds[number + 1]]
        instance = matches.instance[members]
        rows = _Members(
            matches.start_ns[members],
            matches.end_ns[members],
            np.where(known[instance], timing.wait_ns[members], 0),
            known[instance],
            lacking[instance],
            matches.index[members],
            waits_for[members],
        )
        waits.append(_of_device(rows, device))
    return tuple(waits)


def _known_and_lacking(matches: Matches, clocks: Clocks) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which instances show their ranks' waits, and of which not all ranks are recorded.

    An instance shows waits if it synchronizes and all its ranks are recorded.
    """
    if not len(matches):
        return np.empty(0, np.bool_), np.empty(0, np.bool_)
    single = np.diff(matches.first) < 2
    declared = np.array([matches.groups[group].size for group in matches.group.tolist()], np.int64)
    # The matching takes the recorded ranks for all where the traces do not tell the size of a group.
    undeclared = single & matches.synchronizing & (declared != 1)
    misfit = np.logical_or.reduceat(clocks.misfit[matches.device], matches.first[:-1])
    lacking = ~matches.complete | undeclared | misfit
    return matches.synchronizing & ~lacking, lacking


def _waits_for(matches: Matches) -> NDArray[np.int32]:
    """Return for each member the rank that arrived last, if more than half of its wait was for that rank alone, or -1.

    Once the last but one has arrived, all others wait for the last alone.
    """
    length = matches.end_ns - matches.start_ns
    order = np.lexsort((length, matches.instance))
    several = np.diff(matches.first) > 1
    low = matches.first[:-1][several]
    last, alone_ns = np.zeros(len(matches), np.int64), np.zeros(len(matches), np.int64)
    last[several] = order[low]
    alone_ns[several] = length[order[low + 1]] - length[order[low]]
    last_member = last[matches.instance]
    wait = length - length[last_member]
    rank = np.array([rank for rank, _ in matches.device_ids], np.int32)[matches.device[last_member]]
    return np.where((wait > 0) & (2 * alone_ns[matches.instance] > wait), rank, -1).astype(np.int32)


def waits_by_rank(matches: Matches, waits: Sequence[ExposedWait]) -> dict[int, float]:
    """Return for each rank the exposed waiting of others that was for it, in ns, in collectives with all their ranks.

    Each moment of a wait counts in equal parts for the ranks that had not arrived::

        rank 0   ░░░░░░░░░░░░▒▒▒   waits for 1 and 2 in equal parts, then for 2
        rank 1           ░░░░▒▒▒   waits for 2
        rank 2               ▒▒▒
    """
    length, (wait_ns, exposed) = matches.end_ns - matches.start_ns, np.zeros((2, len(matches.device)))
    for number, wait in enumerate(waits):
        own = matches.device == number
        wait_ns[own] = wait.calls.wait_ns[matches.index[own]]
        exposed[own] = wait.calls.exposed_ns[matches.index[own]]
    order = np.lexsort((-length, matches.instance))
    instance, ordered = matches.instance[order], length[order].astype(np.float64)
    rank = np.array([rank for rank, _ in matches.device_ids], np.int64)[matches.device[order]]
    last = matches.first[1:][instance] - 1
    place = np.arange(len(order))
    # What a member that is already there waits for each later one until the next arrives, in equal parts.
    part = np.append(ordered[:-1] - ordered[1:], 0)[: len(order)] / np.maximum(last - place, 1)
    until = _sums_before(np.where(place < last, part, 0), matches.first)
    whole = ordered - ordered[last]
    known = (whole > 0) & (whole == wait_ns[order])
    density = np.divide(exposed[order], whole, out=np.zeros(len(order)), where=known)
    caused = until * _sums_before(density, matches.first) - _sums_before(density * until, matches.first)
    found = np.bincount(rank, caused, 1)
    return {one: float(found[one]) for one in np.flatnonzero(found > 0).tolist()}


def _sums_before(values: NDArray[np.float64], first: Int64) -> NDArray[np.float64]:
    """Return for each member the sum over those before it in its instance."""
    sums = np.concatenate(([0.0], np.cumsum(values)))[:-1]
    before: NDArray[np.float64] = sums - np.repeat(sums[first[:-1]] if len(values) else sums, np.diff(first))
    return before


class _Members(msgspec.Struct, frozen=True):
    """One device's part in the matched collectives: an entry each."""

    start_ns: Int64
    end_ns: Int64
    wait_ns: Int64
    known: NDArray[np.bool_]
    lacking: NDArray[np.bool_]
    index: NDArray[np.int32]
    waits_for: NDArray[np.int32]


def _of_device(members: _Members, device: DeviceFigures) -> ExposedWait:
    timeline = device.timeline
    comm = np.flatnonzero(timeline.collective >= 0)
    called = comm[members.index]
    kinds = np.array([timeline.collectives[i].kind for i in timeline.collective[called].tolist()], object)
    waiting, whole = _of_rows(members, timeline.step[called], device, np.ones(len(called), np.bool_))
    by_kind = {
        kind: _of_rows(members, timeline.step[called], device, kinds == kind)[1] for kind in sorted(set(kinds.tolist()))
    }
    calls = _calls(members, device, len(comm))
    waits_for = _waits_for_by_step(calls, timeline.start_ns[comm], whole.wait_ns, timeline.windows.bounds)
    return ExposedWait(whole.wait_ns, whole.known, whole.unmatched_ns, waiting, by_kind, calls, waits_for)


def _of_rows(
    members: _Members, step: NDArray[np.int32], device: DeviceFigures, rows: NDArray[np.bool_]
) -> tuple[IntervalSet, WaitFigures]:
    """Return when the collectives *rows* wait without compute, and their figures of each step."""
    start, windows = members.start_ns[rows], device.timeline.windows
    waiting = intersect(union(start, start + members.wait_ns[rows]), device.exposed)
    lone = rows & members.lacking
    unmatched = subtract(intersect(union(members.start_ns[lone], members.end_ns[lone]), device.exposed), waiting)
    wait_ns, unmatched_ns = (np.diff(covered(part, windows.bounds)) for part in (waiting, unmatched))
    has_known = np.zeros(len(windows), np.bool_)
    has_known[step[rows & members.known & (step >= 0)]] = True
    # A collective that was launched in the step before may wait in this one.
    return waiting, WaitFigures(wait_ns, has_known | (wait_ns > 0), unmatched_ns)


def _calls(members: _Members, device: DeviceFigures, count: int) -> CallWaits:
    """Return the waits of the device's *count* collectives."""
    wait_ns, exposed_ns = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    waits_for = np.full(count, -1, np.int32)
    known = members.known
    start, wait, index = members.start_ns[known], members.wait_ns[known], members.index[known]
    wait_ns[index] = wait
    exposed_ns[index] = covered(device.exposed, start + wait) - covered(device.exposed, start)
    waits_for[index] = members.waits_for[known]
    return CallWaits(wait_ns, exposed_ns, waits_for)


def _waits_for_by_step(calls: CallWaits, start: Int64, wait_ns: Int64, bounds: Int64) -> NDArray[np.int32]:
    """Return the rank that more than half of each step's exposed wait *wait_ns* was for, or -1."""
    step = np.searchsorted(bounds, start, side="right") - 1
    known = (calls.waits_for >= 0) & (step >= 0) & (step < len(wait_ns))
    ranks, code = np.unique(calls.waits_for[known], return_inverse=True)
    waits = np.zeros((len(wait_ns), len(ranks) + 1), np.int64)
    np.add.at(waits, (step[known], code), calls.exposed_ns[known])
    most = waits.argmax(axis=1)
    stands_out = 2 * waits[np.arange(len(waits)), most] > wait_ns
    return np.where(stands_out, np.append(ranks, -1)[most], -1).astype(np.int32)
