"""Wait and transfer of matched collectives: exposed wait, latency, bandwidth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks import UNKNOWN_NS, Clocks
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.analysis.per_gpu.split import EXPOSED_LABELS
from dptrace.core.checks import holds
from dptrace.core.columns import Columns
from dptrace.core.intervals import Int64, IntervalSet, covered, intersect, median, subtract, sums, union, unique
from dptrace.model.alpha_beta import MIN_SIZE_RATIO, Line, r_squared, weighted_line
from dptrace.model.collectives import POINT_TO_POINT, bus_factor
from dptrace.timeline.model import Phase

# Wait, transfer time and bandwidth of each collective, and the rank that arrived last.


class Timing(msgspec.Struct, frozen=True, dict=True):
    """One entry per instance of the matches, or per member of one.

    Only complete instances have figures: where ranks are missing, all others may have waited for them.
    """

    transfer_ns: Int64
    """Per instance: the shortest duration among its members, since the last to arrive does not wait; UNKNOWN_NS if it
    is not complete."""
    wait_ns: Int64
    """Per member: its duration minus the transfer, in a message until the other side began at most; UNKNOWN_NS if the
    instance is not complete, or its ranks do not wait for each other."""
    late_ns: Int64
    """Per member: its start after the first member's, on aligned clocks."""
    late_known: NDArray[np.bool_]
    """Per member: whether the instance is complete and the lateness exceeds the uncertainty of the clocks."""
    unsure_ns: Int64
    """Per member: that uncertainty; UNKNOWN_NS if the instance is not complete or its clocks cannot be compared."""
    last: NDArray[np.int32]
    """Per instance: the device that arrived last; -1 if unknown."""
    algbw: NDArray[np.float64]
    """Per instance: message bytes / transfer time, in bytes per second; NaN if bytes or time are unknown."""
    busbw: NDArray[np.float64]
    """Per instance: bus bandwidth, comparable between kinds and numbers of ranks, in bytes per second."""


def timing(matches: Matches, clocks: Clocks) -> Timing:
    """Separate wait from transfer, which needs no common clock, and find the last to arrive, which does.

    Both are given for complete instances only, and waits for kinds in which ranks wait for each other. A message may
    last until the host asks for it, long after it has arrived: the wait in one ends where the other side begins. The
    last to arrive has the shortest duration in a synchronizing collective, and otherwise the latest start. It is
    known only if it differs from the next by more than the uncertainty of the two clocks.
    """
    length = matches.end_ns - matches.start_ns
    low = matches.first[:-1]
    shortest = np.minimum.reduceat(length, low) if len(matches) else np.empty(0, np.int64)
    transfer = np.where(matches.complete, shortest, UNKNOWN_NS)
    start = aligned_starts(matches, clocks)
    by_start = np.lexsort((start, matches.instance))
    earliest = by_start[low][matches.instance]
    late = start - start[earliest]
    between = clocks.between(matches.device, matches.device[earliest])
    unsure = np.where(matches.complete[matches.instance], between, UNKNOWN_NS)
    waits, wait = (matches.complete & matches.synchronizing)[matches.instance], length - transfer[matches.instance]
    if matches.messages.any():
        comparable = np.minimum.reduceat(unsure, low) != UNKNOWN_NS
        messages = (matches.messages & comparable)[matches.instance]
        other_began = np.maximum.reduceat(start, low)[matches.instance]
        waits, wait = waits | messages, np.where(messages, np.minimum(wait, other_began - start), wait)
    with np.errstate(divide="ignore", invalid="ignore"):
        # A group of one rank sends nothing.
        sent = (matches.bytes > 0) & (transfer > 0) & (matches.size > 1)
        algbw = np.where(sent, matches.bytes / (transfer * 1e-9), np.nan)
    return Timing(
        transfer_ns=transfer,
        wait_ns=np.where(waits, wait, UNKNOWN_NS),
        late_ns=late,
        late_known=(unsure != UNKNOWN_NS) & ((late > unsure) | (matches.device == matches.device[earliest])),
        unsure_ns=unsure,
        last=_last(matches, clocks, np.where(matches.synchronizing[matches.instance], length, -start)),
        algbw=algbw,
        busbw=algbw * _factors(matches),
    )


def aligned_starts(matches: Matches, clocks: Clocks) -> Int64:
    """Return when each member of the matches began, on its reference's clock, in ns."""
    start = matches.start_ns.copy()
    for device, own in enumerate(matches.of_device):
        start[own] = clocks.align(device, start[own])
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
    return np.array(factors, np.float64)[which]


# Exposed communication that is waiting for later ranks, and that of collectives whose waiting is unknown.
#
# ::
#
#     rank 0   compute ███░░░░░░░░▒▒▒▒   all-reduce: waits, then transfers
#     rank 1   compute ███████████▒▒▒▒   arrives last: only transfers
#                         └ wait ┘└ transfer: the shortest duration among the ranks

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
    waits = [wait for wait in (total["exposed_wait_ns"] for total in totals) if wait is not None]
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


def beside_waiting(waits: Mapping[str, float | None]) -> str:
    """Return what pictures that draw waiting by itself call the rest of exposed communication.

    >>> beside_waiting({"exposed_wait_ns": 7, "exposed_unmatched_ns": 0})
    'Exposed transfer'
    >>> beside_waiting({"exposed_wait_ns": 7, "exposed_unmatched_ns": 1})
    'Exposed transfer, at most'
    >>> beside_waiting({"exposed_wait_ns": None, "exposed_unmatched_ns": 10})
    'Exposed communication'
    """
    if waits["exposed_wait_ns"] is None:
        return EXPOSED_LABELS["exposed_comm_ns"]
    return EXPOSED_LABELS["exposed_transfer_ns"] + (", at most" if waits["exposed_unmatched_ns"] else "")


class CallWaits(Columns, frozen=True):
    """Waiting of each collective of a device, in the order of its timeline; -1 where it is not known."""

    wait_ns: Int64
    """Duration beyond the transfer, at the start of the interval."""
    exposed_ns: Int64
    """The part of the wait without compute."""
    waits_for: NDArray[np.int32]
    """Rank that arrived last, if more than half of the wait was for it alone; else -1."""


class ExposedWait(WaitFigures, frozen=True):
    """Waiting in the exposed communication of one device."""

    intervals: IntervalSet
    """When the device waited without computing, on its own clock, in ns."""
    by_kind: dict[str, WaitFigures]
    """By kind of collective; concurrent kinds may wait at the same time."""
    calls: CallWaits
    """Each collective on its own; concurrent collectives may wait at the same time."""
    waits_for: NDArray[np.int32]
    """Of each step: the rank that more than half of its exposed wait was for, not counting the other sides of messages,
    which may wait themselves; -1 where no rank stands out."""

    def select(self, steps: slice, calls: NDArray[np.bool_]) -> ExposedWait:
        """Keep some steps, and the collectives that a mask selects."""
        whole, kept = self.cut(steps), self.calls.take(calls)
        by_kind = {kind: figures.cut(steps) for kind, figures in self.by_kind.items()}
        return ExposedWait(
            whole.wait_ns, whole.known, whole.unmatched_ns, self.intervals, by_kind, kept, self.waits_for[steps]
        )

    def waits_for_most(self) -> int | None:
        """Return the rank that more than half of the exposed wait of all steps was for; None if there is none."""
        ranks, code = np.unique(self.waits_for, return_inverse=True)
        waits = sums(code, np.where(self.waits_for >= 0, self.wait_ns, 0), len(ranks))
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
    waits_for, lacking, waits = _waits_for(matches), _lacking(matches, clocks), list[ExposedWait]()
    sizes = [len(own) + len(one.exposed[0]) for own, one in zip(matches.of_device, devices, strict=True)]
    for first, end in _batches(sizes):
        some, own = devices[first:end], matches.of_device[first:end]
        count, member = [*map(len, own)], np.concatenate(own)
        known = np.array(["exposed_comm_ns" not in device.split.unknown for device in some], np.bool_)
        place, without = np.repeat(np.arange(len(some)), count), lacking[matches.instance[member]]
        shown = (timing.wait_ns[member] != UNKNOWN_NS) & ~without & known[place]
        rows = _Members(
            place,
            matches.start_ns[member],
            matches.end_ns[member],
            np.where(shown, timing.wait_ns[member], 0),
            shown,
            without,
            matches.index[member],
            waits_for[member],
        )
        waits += _of_devices(rows, some)
    return tuple(waits)


_AT_ONCE = 1 << 18
"""Collectives and intervals of devices that are handled at once: more would take memory, fewer time."""


def _batches(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first of some devices that are handled at once, and the one after the last."""
    first, size = 0, 0
    for number, own in enumerate(sizes):
        if number > first and size + own > _AT_ONCE:
            yield first, number
            first, size = number, 0
        size += own
    if sizes:
        yield first, len(sizes)


def _lacking(matches: Matches, clocks: Clocks) -> NDArray[np.bool_]:
    """Return of which instances not all ranks are recorded."""
    if not len(matches):
        return np.empty(0, np.bool_)
    single = np.diff(matches.first) < 2
    declared = np.array([matches.groups[group].size for group in matches.group.tolist()], np.int64)
    # The matching takes the recorded ranks for all where the traces do not tell the size of a group.
    undeclared = single & matches.synchronizing & (declared != 1)
    misfit = np.logical_or.reduceat(clocks.misfit[matches.device], matches.first[:-1])
    lacking: NDArray[np.bool_] = ~matches.complete | undeclared | misfit
    return lacking


def _waits_for(matches: Matches) -> NDArray[np.int32]:
    """Return for each member the rank that arrived last, if more than half of its wait was for that rank alone, or -1.

    Once the last but one has arrived, all others wait for the last alone. A GPU that waits for another one of its own
    rank waits for no rank: -1.
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
    rank = np.array([rank for rank, _ in matches.device_ids], np.int32)[matches.device]
    of_one = (wait > 0) & (2 * alone_ns[matches.instance] > wait) & (rank[last_member] != rank)
    return np.where(of_one, rank[last_member], -1).astype(np.int32)


def waits_by_rank(matches: Matches, waits: Sequence[ExposedWait]) -> dict[int, float]:
    """Return for each rank the exposed waiting of others that was for it, in ns, in collectives with all their ranks.

    Each moment of a wait counts in equal parts for the ranks that had not arrived::

        rank 0   ░░░░░░░░░░░░▒▒▒   waits for 1 and 2 in equal parts, then for 2
        rank 1           ░░░░▒▒▒   waits for 2
        rank 2               ▒▒▒
    """
    length, (wait_ns, exposed) = matches.end_ns - matches.start_ns, np.zeros((2, len(matches.device)))
    for own, wait in zip(matches.of_device, waits, strict=True):
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
    """The parts of some devices in the matched collectives, device by device: an entry each."""

    place: Int64
    """Number of the device."""
    start_ns: Int64
    end_ns: Int64
    wait_ns: Int64
    known: NDArray[np.bool_]
    lacking: NDArray[np.bool_]
    index: NDArray[np.int32]
    waits_for: NDArray[np.int32]


class _Line(msgspec.Struct, frozen=True):
    """Some devices one after the other on one axis of time, so that all of them are looked at in one go."""

    begin_ns: Int64
    """Where each device begins, and where the last ends."""
    shift_ns: Int64
    """What is added to the times of each device."""
    exposed: IntervalSet
    bounds_ns: Int64
    """Bounds of the steps of each device."""
    step: Int64
    """Of each bound: which of the steps of all devices begins there, or -1."""

    @classmethod
    def of(cls, members: _Members, devices: Sequence[DeviceFigures], first: Int64) -> _Line:
        """Lay out the devices; *first* is the index of each one's first member, and the number of all."""
        spans = []
        for device, low, high in zip(devices, first[:-1].tolist(), first[1:].tolist(), strict=True):
            steps, (start, end), own = device.timeline.windows.bounds, device.exposed, slice(low, high)
            edges = [steps[:1], steps[-1:], start[:1], end[-1:], members.start_ns[own], members.end_ns[own]]
            times = np.concatenate(edges)
            spans.append((int(times.min()), int(times.max())) if len(times) else (0, 0))
        low_ns, high_ns = np.array(spans, np.int64).T
        begin_ns = np.concatenate((np.zeros(1, np.int64), np.cumsum(high_ns - low_ns + 2)))
        shift_ns = begin_ns[:-1] - low_ns
        bounds, step, count = [device.timeline.windows.bounds for device in devices], [np.empty(0, np.int64)], 0
        for windows in (device.timeline.windows for device in devices):
            of_span = windows.step_of_span[: len(windows.bounds)]
            step.append(np.where(of_span >= 0, of_span + count, -1))
            count += len(windows)
        return cls(
            begin_ns,
            shift_ns,
            (
                _joined([one.exposed[0] for one in devices], shift_ns),
                _joined([d.exposed[1] for d in devices], shift_ns),
            ),
            _joined(bounds, shift_ns),
            np.concatenate(step),
        )

    def by_step(self, when: IntervalSet) -> Int64:
        """Return how much of a set is in each step, device by device."""
        return np.diff(covered(when, self.bounds_ns))[self.step[:-1] >= 0]

    def divided(self, when: IntervalSet) -> list[IntervalSet]:
        """Return the part of each device of a set, at its own times."""
        at = np.searchsorted(when[0], self.begin_ns)
        return [
            (when[0][first:end] - shift, when[1][first:end] - shift)
            for (first, end), shift in zip(pairwise(at.tolist()), self.shift_ns.tolist(), strict=True)
        ]


def _joined(times: Sequence[Int64], shift_ns: Int64) -> Int64:
    return np.concatenate(times) + np.repeat(shift_ns, [len(own) for own in times])


def _of_devices(members: _Members, devices: Sequence[DeviceFigures]) -> list[ExposedWait]:
    first = np.searchsorted(members.place, np.arange(len(devices) + 1))
    line = _Line.of(members, devices, first)
    shift = line.shift_ns[members.place]
    start, end, wait = members.start_ns + shift, members.end_ns + shift, members.wait_ns
    steps = np.cumsum([0, *(len(device.timeline.windows) for device in devices)])
    kinds, kind, of_device = _kinds_and_steps(members, devices, first)
    step = np.where(of_device >= 0, steps[members.place] + of_device, -1)
    most = np.concatenate([device.split.figures["exposed_comm_ns"] for device in devices])

    def waiting_of(rows: NDArray[np.bool_]) -> tuple[IntervalSet, list[WaitFigures]]:
        """Return when the collectives *rows* wait without compute, and their figures of each step."""
        waiting = intersect(union(start[rows], (start + wait)[rows]), line.exposed)
        lone = rows & members.lacking
        wait_ns, unmatched_ns = line.by_step(waiting), np.zeros(len(most), np.int64)
        if lone.any():
            unmatched_ns = line.by_step(subtract(intersect(union(start[lone], end[lone]), line.exposed), waiting))
        # A collective that was launched in the step before may wait in this one.
        has_known = wait_ns > 0
        has_known[step[rows & members.known & (step >= 0)]] = True
        beyond = wait_ns > most
        if not holds(not beyond.any(), "waiting is exposed communication"):
            device = np.searchsorted(steps, np.flatnonzero(beyond), side="right") - 1
            has_known[np.isin(np.searchsorted(steps, np.arange(len(most)), side="right") - 1, device)] = False
        own = [slice(first, end) for first, end in pairwise(steps.tolist())]
        return waiting, [WaitFigures(wait_ns[one], has_known[one], unmatched_ns[one]) for one in own]

    waiting, whole = waiting_of(np.ones(len(start), np.bool_))
    by_kind: list[dict[str, WaitFigures]] = [{} for _ in devices]
    for number, name in enumerate(kinds):
        rows = kind == number
        _, figures = waiting_of(rows)
        for place in unique(members.place[rows]).tolist():
            by_kind[place][name] = figures[place]
    exposed_ns = covered(line.exposed, start + wait) - covered(line.exposed, start)
    calls = _calls(members, devices, exposed_ns)
    named = members.known & ~np.isin(kind, [kinds.index(one) for one in POINT_TO_POINT if one in kinds])
    waits_for = _waits_for_by_step(members, named, line, steps, start, exposed_ns, whole)
    each = zip(whole, line.divided(waiting), by_kind, calls, waits_for, strict=True)
    return [
        ExposedWait(one.wait_ns, one.known, one.unmatched_ns, when, kinds_of, of_calls, ranks)
        for one, when, kinds_of, of_calls, ranks in each
    ]


def _kinds_and_steps(
    members: _Members, devices: Sequence[DeviceFigures], first: Int64
) -> tuple[list[str], Int64, NDArray[np.int32]]:
    """Return the kinds in order of their names, and of each member the number of its kind, and its step."""
    kinds = sorted({collective.kind for device in devices for collective in device.timeline.collectives})
    number = {kind: place for place, kind in enumerate(kinds)}
    kind, step = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for device, low, high in zip(devices, first[:-1].tolist(), first[1:].tolist(), strict=True):
        timeline = device.timeline
        called = np.flatnonzero(timeline.collective >= 0)[members.index[low:high]]
        of_collectives = np.array([number[one.kind] for one in timeline.collectives], np.int64)
        kind.append(of_collectives[timeline.collective[called]])
        step.append(timeline.step[called])
    return kinds, np.concatenate(kind), np.concatenate(step)


def _calls(members: _Members, devices: Sequence[DeviceFigures], exposed_ns: Int64) -> list[CallWaits]:
    """Return the waits of all collectives of each device.

    Args:
        exposed_ns: the part without compute of the wait of each member.
    """
    first = np.cumsum([0, *(int((device.timeline.collective >= 0).sum()) for device in devices)])
    wait_ns, exposed = np.full((2, first[-1]), -1, np.int64)
    waits_for = np.full(first[-1], -1, np.int32)
    known = members.known
    index = (first[members.place] + members.index)[known]
    wait_ns[index], exposed[index] = members.wait_ns[known], exposed_ns[known]
    waits_for[index] = members.waits_for[known]
    return [CallWaits(wait_ns[a:b], exposed[a:b], waits_for[a:b]) for a, b in pairwise(first.tolist())]


def _waits_for_by_step(
    members: _Members,
    chosen: NDArray[np.bool_],
    line: _Line,
    steps: Int64,
    start: Int64,
    exposed_ns: Int64,
    whole: Sequence[WaitFigures],
) -> list[NDArray[np.int32]]:
    """Return for each device the rank that more than half of each step's exposed wait was for, or -1.

    Args:
        chosen: which members count.
        steps: index of each device's first step, and the number of all.
        start: of each member, on the line.
        exposed_ns: the part of its wait without compute.
    """
    step = np.append(line.step, -1)[np.searchsorted(line.bounds_ns, start, side="right") - 1]
    inside = chosen & (members.waits_for >= 0) & (step >= 0)
    step, rank = step[inside], members.waits_for[inside].astype(np.int64)
    found = np.full(steps[-1], -1, np.int32)
    if len(step):
        order = np.lexsort((rank, step))
        step, rank, waited = step[order], rank[order], exposed_ns[inside][order]
        fresh = np.flatnonzero(np.append(True, (np.diff(step) != 0) | (np.diff(rank) != 0)))
        step, rank, waited = step[fresh], rank[fresh], np.add.reduceat(waited, fresh)
        most = np.lexsort((rank, -waited, step))
        most = most[np.append(True, np.diff(step[most]) != 0)]
        wait_ns = np.concatenate([one.wait_ns for one in whole])
        most = most[2 * waited[most] > wait_ns[step[most]]]
        found[step[most]] = rank[most]
    return [found[a:b] for a, b in pairwise(steps.tolist())]


# Distribution of the transfer times of comparable collectives, and which of them were slow.

UNKNOWN_PHASE = -1
_MIN_ALIKE = 5
"""Fewest instances among which slow ones are identified."""
_ALIKE = 1.25
"""Largest ratio of sizes that should take equally long."""


class Latency(msgspec.Struct, frozen=True):
    """Instances that should take equally long: same kind, group and size, or same name and phase."""

    name: str
    """Their name besides the kind: ``bucket 0``, ``FSDP::all_gather (layers.3)``, EARLY; may be empty."""
    kind: str
    group: int
    """Index into the matches' groups."""
    bytes: int
    """Message bytes; the median if the sizes vary, as those of tokens sent to experts do."""
    instances: Int64
    """Indices into the matches, in order of time."""
    transfer_ns: Int64
    """Of each instance."""
    wait_ns: float | None
    """Mean wait of a rank in one of them; None for a kind in which ranks do not wait for each other."""
    busbw: float | None
    """Median bus bandwidth in bytes per second; None if the bytes are unknown."""
    slow: NDArray[np.bool_]
    """Of each instance: whether it took over 1.5 times the median, and five median deviations above it."""
    phase: int = UNKNOWN_PHASE
    """The phase that launched named instances, a ``timeline.model.Phase``; UNKNOWN_PHASE without a name."""

    def quantile(self, share: float) -> int:
        """Return the transfer time in ns that this share of the instances does not exceed."""
        return int(np.quantile(self.transfer_ns, share, method="higher"))

    def histogram(self, bins: int = 10) -> tuple[NDArray[np.int64], Int64]:
        """Count the instances in equal bins of transfer time; return the counts and the *bins* + 1 edges in ns."""
        counts, edges = np.histogram(self.transfer_ns, bins)
        return counts.astype(np.int64), np.rint(edges).astype(np.int64)


EARLY = "launched before recording"
"""The name of collectives of which the file has neither launch nor name nor bytes, so that unlike ones are together."""


def latencies(
    matches: Matches,
    timing: Timing,
    names: Sequence[str] | None = None,
    launched: NDArray[np.bool_] | None = None,
) -> tuple[Latency, ...]:
    """Group comparable collectives, sorted by total transfer time, longest first; last what is EARLY.

    Instances with missing ranks are left out, since their wait is unknown, and so are groups of one rank, which send
    nothing.

    Args:
        names: one per instance of the matches; instances with different names are not grouped.
        launched: of each instance, whether the launch of any member is recorded; all by default.
    """
    early = np.zeros(len(matches), np.bool_) if launched is None else ~launched & (matches.bytes <= 0)
    instance_names = np.array(names if names is not None else [""] * len(matches), object)
    chosen = np.flatnonzero(matches.complete & (matches.size > 1))
    kinds = np.unique(matches.kind[chosen].astype(str), return_inverse=True)[1]
    called = np.unique(instance_names[chosen].astype(str), return_inverse=True)[1]
    named = instance_names[chosen] != ""
    # Named instances may vary in size, and one name may occur in forward and backward: FSDP gathers a unit in both.
    size = np.where(named, 0, matches.bytes[chosen])
    phase = np.where(named, matches.phase[chosen].astype(np.int64), UNKNOWN_PHASE)
    early = early[chosen] & ~named
    keys = np.stack((kinds, matches.group[chosen], size, called, phase, early), axis=1).astype(np.int64)
    which = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.argsort(which, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(which[order])) + 1) if len(chosen) else []
    groups = []
    for part in parts:
        group = _latency(matches, timing, chosen[part], str(instance_names[chosen[part[0]]]))
        groups.append(replace(group, name=EARLY) if early[part[0]] else group)
    return _longest_first(groups)


def _longest_first(groups: Iterable[Latency]) -> tuple[Latency, ...]:
    return tuple(sorted(groups, key=lambda latency: (latency.name == EARLY, -int(latency.transfer_ns.sum()))))


def merge_groups(groups: Sequence[Latency], matches: Matches, timing: Timing) -> tuple[Latency, ...]:
    """Merge entries that differ only in their group, and the layers of a label whose sizes vary, longest first.

    Groups are equivalent if they have the same purpose (``mesh_tp`` of each replica) and number of ranks.
    """
    varied = {_family(latency.name) for latency in groups if latency.name and np.ptp(matches.bytes[latency.instances])}
    mergeable: dict[tuple[object, ...], list[Latency]] = {}
    for latency in groups:
        group = matches.groups[latency.group]
        purpose = (group.description, group.size) if group.description else latency.group
        name, size = latency.name, latency.bytes
        if _family(name) in varied:  # the label without its layer: MoE::dispatch of MoE::dispatch (1.mlp)
            name, size = name.partition(" (")[0], 0
        mergeable.setdefault((latency.kind, name, size, latency.phase, purpose), []).append(latency)
    rows = []
    for (_, merged_name, *_), parts in mergeable.items():
        if len(parts) == 1:
            rows.append(parts[0])
            continue
        instances = np.concatenate([part.instances for part in parts])
        slow = np.concatenate([part.slow for part in parts])
        order = np.argsort(instances, kind="stable")
        rows.append(replace(_latency(matches, timing, instances[order], str(merged_name)), slow=slow[order]))
    return _longest_first(rows)


def with_phase_in_name(groups: Sequence[Latency]) -> tuple[Latency, ...]:
    """Add the phase to names that occur in several phases."""
    phases: dict[tuple[str, str], set[int]] = {}
    for latency in groups:
        phases.setdefault((latency.kind, latency.name), set()).add(latency.phase)
    return tuple(
        replace(latency, name=f"{latency.name}, {Phase(latency.phase).name.lower()}")
        if len(phases[latency.kind, latency.name]) > 1
        else latency
        for latency in groups
    )


def _family(name: str) -> str:
    """Return the prefix of a trainer's labels: ``MoE``."""
    return name.partition("::")[0]


def _latency(matches: Matches, timing: Timing, part: Int64, name: str) -> Latency:
    one = part[0]
    transfer = timing.transfer_ns[part]
    middle = median(transfer)
    deviation = median(np.abs(transfer - middle))
    # With unknown sizes, larger messages would seem slow.
    sizes = matches.bytes[part]
    comparable = len(part) >= _MIN_ALIKE and (sizes.min() > 0 or bool(name)) and sizes.max() <= _ALIKE * sizes.min()
    slow = (transfer > middle + 5 * deviation) & (transfer > 1.5 * middle) & comparable
    size = np.diff(matches.first)[part]
    waits = timing.wait_ns[matches.first[:-1][part]] != UNKNOWN_NS
    waited = (np.add.reduceat(timing.wait_ns, matches.first[:-1])[part] / size)[waits]
    rates = timing.busbw[part][~np.isnan(timing.busbw[part])]
    return Latency(
        name=name,
        kind=str(matches.kind[one]),
        group=int(matches.group[one]),
        bytes=int(median(sizes)),
        instances=part,
        transfer_ns=transfer,
        wait_ns=float(waited.mean()) if len(waited) else None,
        busbw=float(median(rates)) if len(rates) else None,
        slow=slow,
        phase=int(matches.phase[one]) if name else UNKNOWN_PHASE,
    )


# The alpha-beta model of each kind of collective, fitted to the transfer times of the run.


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
    seconds, fits = timing.transfer_ns.astype(np.float64) * 1e-9, []
    found: dict[tuple[str, int], list[int]] = {}
    for number, pair in enumerate(zip(matches.kind.tolist(), matches.group.tolist(), strict=True)):
        found.setdefault(pair, []).append(number)
    for (kind, group), own in sorted(found.items()):
        instances = np.array(own)
        good = instances[usable[instances]]
        ranks = int(matches.size[instances].max())
        fits.append(_fit(str(kind), group, ranks, matches.bytes[good], seconds[good]))
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
