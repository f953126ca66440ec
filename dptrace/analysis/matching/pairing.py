"""Pair the calls of all ranks into collective instances: by position if the ranks agree, otherwise by time."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.matching.calls import NO_STEP, Calls
from dptrace.analysis.matching.offsets import estimate_drift, estimate_offsets
from dptrace.analysis.matching.sequence_alignment import align, estimate_offset_by_time
from dptrace.core.intervals import Int64, unique

__all__ = ["pair"]

_OPEN = -1
"""Row of a call whose instance is not known yet."""
_REACH_NS = 200_000
"""Largest assumed distance between the ends of one collective, or five times the clocks' uncertainty if larger."""
_LOOSE = 20
"""Factor for kinds in which one rank may leave long before another, such as the root of a broadcast."""
_FAR = 100
"""Factor for pairs without alternatives: both lie between the same two matched calls."""
_ROUNDS = 5


def pair(calls: Calls) -> tuple[Int64, Int64]:
    """Return the instance of each call, and its end on the clock of its reference, in ns."""
    row, place = _by_place(calls)
    clock = _Clock.of(calls, row)
    row[_doubtful(calls, row, place, clock)] = _OPEN
    _Instances(calls, row, clock).complete()
    return row, clock.time


def _by_place(calls: Calls) -> tuple[Int64, Int64]:
    """Match the n-th call with a signature in a step, or with a sequence number, on all ranks with the usual count.

    The usual count is that of most ranks; calls of other ranks stay open.

    Returns:
        The instance of each call, and the class of each instance: its step (or number) and signature.
    """
    row = np.full(len(calls), _OPEN, np.int64)
    _, seq = np.unique(calls.seq, return_inverse=True)
    label = np.where(calls.seq >= 0, seq + len(calls.step_names), calls.step_index).astype(np.int64)
    chosen = np.flatnonzero((label >= 0) & ~calls.unmatchable)
    keys = calls.signature[chosen] * (label.max(initial=0) + 1) + label[chosen]
    _, cls = np.unique(keys, return_inverse=True)
    order = np.lexsort((calls.launch_ns[chosen], calls.device[chosen], cls))
    chosen, cls = chosen[order], cls[order]
    fresh = np.flatnonzero(np.diff(cls, prepend=-1) | np.diff(calls.device[chosen], prepend=-1))
    count = np.diff(np.append(fresh, len(chosen)))
    usual = _usual(cls[fresh], count)
    base = np.cumsum(usual) - usual
    nth = np.arange(len(chosen)) - np.repeat(fresh, count)
    # A signature of a single rank may have another name on other ranks, or no recorded launch there.
    ranks = np.bincount(cls[fresh], minlength=len(usual))
    agrees = np.repeat((count == usual[cls[fresh]]) & (ranks[cls[fresh]] > 1), count)
    row[chosen[agrees]] = (base[cls] + nth)[agrees]
    return row, np.repeat(np.arange(len(usual)), usual)


def _usual(cls: Int64, count: Int64) -> Int64:
    """Return the count that most ranks of each class have, the largest in a tie."""
    if not len(cls):
        return np.empty(0, np.int64)
    width = int(count.max()) + 1
    pairs, times = np.unique(cls * width + count, return_counts=True)
    order = np.lexsort((pairs % width, times, pairs // width))
    last = np.append(np.diff(pairs[order] // width) > 0, True)
    usual: Int64 = pairs[order[last]] % width
    return usual


@dataclass(slots=True)
class _Clock:
    """When each call ended, on clocks aligned as far as matches allow."""

    time: Int64
    """In ns, on the clock of the reference."""
    reference: NDArray[np.int64]
    """Of each device: the device whose clock its times are on; times of different references cannot be compared."""
    reach: NDArray[np.int64]
    """Of each device: how far its ends may be from the others', in ns."""

    @classmethod
    def of(cls, calls: Calls, row: Int64) -> _Clock:
        devices = calls.device_has_step.shape[1]
        sure = np.flatnonzero((row != _OPEN) & calls.synchronizing)
        offsets, reference = estimate_offsets(
            row[sure], calls.device[sure], calls.start_ns[sure], calls.end_ns[sure], devices
        )
        time = calls.end_ns.copy()
        bounds = np.searchsorted(calls.device, np.arange(devices + 1))
        for device, offset in enumerate(offsets):
            own = slice(bounds[device], bounds[device + 1])
            time[own] -= np.rint(offset.ahead_at(time[own])).astype(np.int64)
        reach = [max(_REACH_NS, int(5 * offset.uncertainty_ns)) for offset in offsets]
        return cls(time, np.array(reference, np.int64), np.array(reach, np.int64))


def _doubtful(calls: Calls, row: Int64, place: Int64, clock: _Clock) -> NDArray[np.bool_]:
    """Return which matched calls ended far from their instance, or nearer to a neighbor of the same class.

    Two ranks may have the same number of calls and yet lack different ones. All of the rank's calls of that class are
    then doubtful. CPU traces are exempt: they are complete within a step, and the time a thread leaves says little.
    """
    known = np.flatnonzero((row != _OPEN) & calls.synchronizing)
    by_row = known[np.lexsort((calls.device[known], row[known]))]
    first = by_row[np.diff(row[by_row], prepend=-1) > 0]
    padded = np.full(len(place) + 2, np.iinfo(np.int64).min // 2)
    padded[row[first] + 1] = clock.time[first]
    group = np.append(np.append(-1, place), -2)
    holder = np.full(len(place), -1, np.int64)
    holder[row[first]] = calls.device[first]
    own, time = row[known] + 1, clock.time[known]
    near = np.full(len(known), np.iinfo(np.int64).max)
    for side in (own - 1, own + 1):
        near = np.where(group[side] == group[own], np.minimum(near, np.abs(time - padded[side])), near)
    far = np.abs(time - padded[own])
    comparable = clock.reference[holder[row[known]]] == clock.reference[calls.device[known]]
    reach = clock.reach[calls.device[known]]
    bad = known[
        comparable & ~calls.on_cpu[calls.device[known]] & ((far > reach) | ((near < far // 2) & (far > reach // 2)))
    ]
    if not len(bad):
        return np.zeros(len(calls), np.bool_)
    devices = calls.device_has_step.shape[1]
    classes = np.append(place, -1)[row] * devices + calls.device
    doubtful: NDArray[np.bool_] = np.isin(classes, classes[bad]) & (row != _OPEN)
    return doubtful


class _Instances:
    """Instances during the search; the first known member of each stands for it."""

    def __init__(self, calls: Calls, row: Int64, clock: _Clock) -> None:
        self.calls, self.row, self.clock = calls, row, clock
        known = np.flatnonzero(row != _OPEN)
        _, first, dense = np.unique(row[known], return_index=True, return_inverse=True)
        row[known] = dense
        self.representative = known[first]
        """Of each instance: the call that stands for it."""

    def complete(self) -> None:
        """Assign every open call, device by device, to an instance that lacks the device or to a new one."""
        calls = self.calls
        bounds = np.searchsorted(calls.device, np.arange(calls.device_has_step.shape[1] + 1))
        for device in range(len(bounds) - 1):
            own = np.arange(bounds[device], bounds[device + 1])
            pending = own[self.row[own] == _OPEN]
            if len(pending):
                self._place(device, own, pending)

    def _place(self, device: int, own: Int64, pending: Int64) -> None:
        calls, clock = self.calls, self.clock
        free = np.ones(len(self.representative), np.bool_)
        free[self.row[own[self.row[own] != _OPEN]]] = False
        wanted = pending[~calls.unmatchable[pending]]
        free &= np.isin(calls.family[self.representative], calls.family[wanted])
        for other in unique(clock.reference[calls.device[self.representative[free]]]):
            if other != clock.reference[device]:
                self._align_reference(device, wanted, np.flatnonzero(free), int(other))
        free &= clock.reference[calls.device[self.representative]] == clock.reference[device]
        mine, theirs = self._align(device, wanted, np.flatnonzero(free))
        self.row[mine] = theirs
        left = pending[self.row[pending] == _OPEN]
        self.row[left] = len(self.representative) + np.arange(len(left))
        self.representative = np.append(self.representative, left)

    def _align(self, device: int, wanted: Int64, free: Int64) -> tuple[Int64, Int64]:
        """Pair a device's open calls with instances that end at the same time; return calls and instances."""
        calls, time = self.calls, self.clock.time
        found = [(wanted[:0], free[:0])]
        for family in unique(calls.family[wanted]):
            mine = wanted[calls.family[wanted] == family]
            theirs = free[calls.family[self.representative[free]] == family]
            mine = mine[np.argsort(time[mine], kind="stable")]
            theirs = theirs[np.argsort(time[self.representative[theirs]], kind="stable")]
            reach = int(self.clock.reach[device]) * (1 if calls.synchronizing[mine].all() else _LOOSE)
            fits = _Fits(calls, mine, self.representative[theirs])
            a, b = align(time[mine], time[self.representative[theirs]], reach, fits)
            found.append((mine[a], theirs[b]))
            left, free_ = np.delete(np.arange(len(mine)), a), np.delete(np.arange(len(theirs)), b)
            between = _Between(fits, left, free_, np.searchsorted(a, left), np.searchsorted(b, free_))
            c, d = align(time[mine[left]], time[self.representative[theirs[free_]]], reach * _FAR, between)
            found.append((mine[left[c]], theirs[free_[d]]))
        return np.concatenate([a for a, _ in found]), np.concatenate([b for _, b in found])

    def _align_reference(self, device: int, wanted: Int64, free: Int64, other: int) -> None:
        """Align the clock of a device, and of all with its reference, with another reference."""
        calls, clock = self.calls, self.clock
        free = free[clock.reference[calls.device[self.representative[free]]] == other]
        theirs = self.representative[free[np.argsort(clock.time[self.representative[free]], kind="stable")]]
        mine = wanted[np.argsort(clock.time[wanted], kind="stable")]
        guess = estimate_offset_by_time(clock.time[theirs], clock.time[mine], calls.family[theirs], calls.family[mine])
        if guess is None:
            return
        ahead, width = guess
        moved = np.isin(calls.device, np.flatnonzero(clock.reference == clock.reference[device]))
        clock.time[moved] -= ahead
        clock.reach[device] = max(clock.reach[device], 4 * width)
        clock.reference[clock.reference == clock.reference[device]] = other
        paired = 0
        for _ in range(_ROUNDS):
            a, b = self._align(device, wanted, free)
            if len(a) <= paired:
                return
            paired = len(a)
            differences = clock.time[a] - clock.time[self.representative[b]]
            offset, drift, middle = estimate_drift(clock.time[a], differences.astype(np.float64))
            clock.time[moved] -= np.rint(offset + drift * (clock.time[moved] - middle)).astype(np.int64)


class _Fits:
    """Whether a device's call may belong to an instance: compatible signature, sequence number and step."""

    def __init__(self, calls: Calls, mine: Int64, theirs: Int64) -> None:
        self.calls, self.mine, self.theirs = calls, mine, theirs

    def __call__(self, a: Int64, b: Int64) -> NDArray[np.bool_]:
        calls, mine, theirs = self.calls, self.mine[a], self.theirs[b]
        signatures = (
            (calls.signature[mine] == calls.signature[theirs]) | ~calls.described[mine] | ~calls.described[theirs]
        )
        numbers = (calls.seq[mine] == calls.seq[theirs]) | (calls.seq[mine] < 0) | (calls.seq[theirs] < 0)
        steps = self._apart(mine, theirs) | (calls.step_index[mine] == calls.step_index[theirs])
        fits: NDArray[np.bool_] = signatures & numbers & steps
        return fits

    def _apart(self, mine: Int64, theirs: Int64) -> NDArray[np.bool_]:
        """Return where one call has no step and its capture lacks the other's step."""
        calls = self.calls
        if not len(calls.step_names):
            return np.ones(np.broadcast_shapes(mine.shape, theirs.shape), np.bool_)
        mine_open = (calls.step_index[mine] == NO_STEP) & ~calls.device_has_step[
            calls.step_index[theirs], calls.device[mine]
        ]
        theirs_open = (calls.step_index[theirs] == NO_STEP) & ~calls.device_has_step[
            calls.step_index[mine], calls.device[theirs]
        ]
        apart: NDArray[np.bool_] = mine_open | theirs_open
        return apart


class _Between(msgspec.Struct, frozen=True):
    """The same for leftover calls that both lie between the same two matched ones."""

    fits: _Fits
    mine: Int64
    theirs: Int64
    my_place: Int64
    their_place: Int64

    def __call__(self, a: Int64, b: Int64) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = self.my_place[a] == self.their_place[b]
        return same & self.fits(self.mine[a], self.theirs[b])
