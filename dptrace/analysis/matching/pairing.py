"""Pair the calls of all ranks into collective instances: by position if the ranks agree, otherwise by time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.matching.calls import NO_STEP, Calls
from dptrace.core.intervals import Int64, median, repeated, unique

# Align two sequences of times of the same events, where each sequence may lack some events.


Fits = Callable[[Int64, Int64], NDArray[np.bool_]]
"""For indices into both sequences (broadcast), whether the two may be the same event."""

_CELLS = 1 << 18
"""Most cells in the table of one cluster; a larger cluster is split by a shorter reach."""


def _all_fit(first: Int64, second: Int64) -> NDArray[np.bool_]:
    return np.ones(np.broadcast_shapes(first.shape, second.shape), np.bool_)


def align(first: Int64, second: Int64, reach: int, fits: Fits = _all_fit) -> tuple[Int64, Int64]:
    """Pair times without crossings so that the pairs are as many and as close as possible.

    A pair at distance d is worth ``reach - d``; pairs without worth are not made, and the total worth is maximal. Most
    times are isolated with their partner and need no search: the cost is the sorting, and a small table for each
    cluster of times within reach of each other.

    Args:
        first, second: times in ns, each ascending, on one clock.
        reach: largest distance between two times of one event, in ns.

    Returns:
        Indices into both, of equal length, both ascending.
    """
    count = len(first)
    times = np.concatenate((first, second))
    order = np.argsort(times, kind="stable")
    cuts = np.flatnonzero(np.diff(times[order]) >= reach) + 1
    begin = np.concatenate(([0], cuts)) if len(order) else np.empty(0, np.int64)
    size = np.diff(np.append(begin, len(order)))
    pairs = begin[size == 2]
    a, b = np.minimum(order[pairs], order[pairs + 1]), np.maximum(order[pairs], order[pairs + 1]) - count
    good = (a < count) & (b >= 0)
    a, b = a[good], b[good]
    good = fits(a, b)
    found = [(a[good], b[good])]
    for place in np.flatnonzero(size > 2):
        members = np.sort(order[begin[place] : begin[place] + size[place]])
        a, b = members[members < count], members[members >= count] - count
        if len(a) and len(b):
            found.append(_cluster(first, second, a, b, reach, fits))
    a, b = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.argsort(a, kind="stable")
    return a[order], b[order]


def _cluster(first: Int64, second: Int64, a: Int64, b: Int64, reach: int, fits: Fits) -> tuple[Int64, Int64]:
    if len(a) * len(b) > _CELLS:
        if reach < 2:
            return _in_order(a, b, fits)
        near = align(first[a], second[b], reach // 2, lambda i, j: fits(a[i], b[j]))
        return a[near[0]], b[near[1]]
    worth = reach - np.abs(first[a][:, None] - second[b])
    worth = np.where(fits(a[:, None], b[None, :]), worth, 0)
    i, j = _best(worth)
    return a[i], b[j]


def _in_order(a: Int64, b: Int64, fits: Fits) -> tuple[Int64, Int64]:
    """Pair a very large cluster of equal times one by one, in order."""
    a, b = a[: len(b)], b[: len(a)]
    good = fits(a, b)
    return a[good], b[good]


def _best(worth: Int64) -> tuple[Int64, Int64]:
    """Choose cells with the greatest sum, each below and to the right of the previous one."""
    rows, columns = worth.shape
    total = np.zeros((rows + 1, columns + 1), np.int64)
    for i in range(rows):
        np.maximum(total[i, 1:], total[i, :-1] + worth[i], out=total[i + 1, 1:])
        np.maximum.accumulate(total[i + 1], out=total[i + 1])
    chosen: list[tuple[int, int]] = []
    i, j = rows, columns
    while total[i, j]:
        if total[i, j] == total[i - 1, j]:
            i -= 1
        elif total[i, j] == total[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            chosen.append((i, j))
    pairs = np.array(chosen[::-1], np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


_WIDTHS = (100_000, 1_000_000, 10_000_000)
"""Distances in ns between the ends of one collective on two ranks: on one machine, over a network, with gloo."""
_SAMPLE = 32
"""Calls in the middle of the shorter list that are tried at every place of the longer one."""
_AGAINST = 1 << 16
"""Calls of the shorter list that are compared, and of the longer one: a clock's offset needs no more, in 17 MB."""


def estimate_offset_by_time(
    first: Int64, second: Int64, first_sort: NDArray[np.int32], second_sort: NDArray[np.int32]
) -> tuple[int, int] | None:
    """Estimate how far the clock of *second* is ahead of that of *first*, from times alone.

    A sample of one sequence is compared with all times of the same sort in the other: the offset is the one on which
    most pairs agree, and the smallest among equals, as with very regular times.

    Args:
        first, second: times in ns, ascending, of partly the same events.
        first_sort, second_sort: a number per time; only events with equal numbers can be the same.

    Returns:
        The offset in ns and the scatter of the pairs about it, or None if no offset explains half of the sample.
    """
    swapped = len(second) > len(first)
    few, many = (first, second) if swapped else (second, first)
    few_sort, many_sort = (first_sort, second_sort) if swapped else (second_sort, first_sort)
    middle = max((len(few) - _SAMPLE) // 2, 0)
    few, few_sort = few[middle : middle + _SAMPLE], few_sort[middle : middle + _SAMPLE]
    at = np.searchsorted(many, few[:1]).sum() - _AGAINST // 2
    low = min(max(int(at), 0), max(len(many) - _AGAINST, 0))
    many, many_sort = many[low : low + _AGAINST], many_sort[low : low + _AGAINST]
    differences = np.sort((few[:, None] - many)[few_sort[:, None] == many_sort])
    differences = np.sort(-differences) if swapped else differences
    for width in _WIDTHS:
        votes = np.searchsorted(differences, differences + width, side="right") - np.arange(len(differences))
        most = int(votes.max(initial=0))
        if most * 2 >= len(few) and most:
            ahead = np.flatnonzero(votes * 10 >= most * 9)
            middles = differences[ahead + votes[ahead] // 2]
            return int(middles[np.argmin(np.abs(middles))]), width
    return None


# Clock offsets between ranks, from the ends of the synchronizing collectives they share.

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
    transfer_ns: float = 0.0
    """How long the fast ones take once all ranks have arrived: on one clock, their ends are no further apart."""

    def ahead_at(self, times: Int64) -> NDArray[np.float64]:
        """Return how far the clock is ahead at times on this clock, in ns."""
        return self.ahead_ns + self.drift * (times - self.at_ns).astype(np.float64)

    def chain(self, other: Offset) -> Offset:
        """Chain the offset from A to B with *other*, from B to C."""
        count = min(self.count, other.count) if self.count else other.count
        ahead = self.ahead_ns + other.ahead_ns + self.drift * (other.at_ns - self.at_ns)
        uncertainty = self.uncertainty_ns + other.uncertainty_ns
        agrees = self.agrees and other.agrees
        transfer = max(self.transfer_ns, other.transfer_ns)
        return Offset(ahead, self.drift + other.drift, other.at_ns, uncertainty, count, agrees, transfer)


class SharedCollectives(msgspec.Struct, frozen=True):
    """Starts and ends, in ns, of the collectives that two devices share; or of many such pairs, a row each."""

    start_ns: Int64
    end_ns: Int64
    other_start_ns: Int64
    other_end_ns: Int64
    transfer_ns: Int64
    """Their shortest durations on any device."""

    def __len__(self) -> int:
        return len(self.start_ns)


def offsets_between(pairs: Sequence[SharedCollectives]) -> list[Offset]:
    """Estimate for each pair of devices how far the other's clock is ahead.

    The ends differ only by the time the last chunk takes to arrive, so the offset is the median of their differences
    over the shorter half of the transfers: late starts and a few outliers do not matter. A drift is reported only if it
    moves the offset further than the differences scatter. The uncertainty is twice that scatter, since a ring may
    always serve the same rank last; or, if smaller, the range that causality allows: no rank can leave a synchronizing
    collective before every other has arrived.
    """
    found = dict[int, Offset]()
    count = np.array([len(shared) for shared in pairs], np.int64)
    for length in unique(count).tolist():
        own = np.flatnonzero(count == length).tolist()
        columns = zip(*(msgspec.structs.astuple(pairs[one]) for one in own), strict=True)
        found |= zip(own, _offsets(SharedCollectives(*map(np.stack, columns))), strict=True)
    return [found[one] for one in range(len(pairs))]


def _offsets(shared: SharedCollectives) -> list[Offset]:
    """Do so for pairs that share as many collectives, a row each."""
    rows, length = shared.start_ns.shape
    time = shared.other_end_ns
    difference = (time - shared.end_ns).astype(np.float64)
    quiet = _quiet(shared)
    count = quiet.sum(axis=1)
    ahead, drift, scatter = np.empty((3, rows))
    middle = np.empty(rows, np.int64)
    for many in unique(count).tolist():
        own = np.flatnonzero(count == many)
        kept = own[:, None], np.nonzero(quiet[own])[1].reshape(len(own), many)
        ahead[own], drift[own], middle[own] = estimate_drift(time[kept], difference[kept])
        moment = (time[kept] - middle[own, None]).astype(np.float64)
        level = difference[kept] - drift[own, None] * moment
        scatter[own] = 2 * _scatter(level) * (1 + 4 / many) if many >= _FEW else np.inf
    low, high = _causal(shared, drift[:, None] * (time - middle[:, None]).astype(np.float64))
    bounded, known = low <= high, np.isfinite(scatter)
    ahead = np.where(bounded, np.minimum(np.maximum(ahead, low), high), ahead)
    # At least one scatter: an undetected drift makes the bounds too narrow.
    least, most = np.where(known, scatter / 2, 0.0), np.maximum(high - ahead, ahead - low)
    within = np.maximum(least, np.minimum(scatter, most))
    scatter = np.where(bounded, within, np.where(known, scatter, low - high))
    # Of enough collectives, one may be matched with another one's.
    first, last = _causal(shared, np.zeros(time.shape), least_spare=int(length >= _DRIFTS))
    agrees = (first <= READ_NS) & (last >= -READ_NS)
    transfer = np.sort(shared.transfer_ns)[:, min(max(length // 10, _FEW - 1), length - 1)].astype(np.float64)
    columns = ahead, drift, middle, np.maximum(scatter, _FLOOR_NS), count, agrees, transfer
    return [Offset(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _quiet(shared: SharedCollectives) -> NDArray[np.bool_]:
    """Choose of each row the half with the shortest transfers: long transfers end less evenly."""
    own, other = shared.end_ns - shared.start_ns, shared.other_end_ns - shared.other_start_ns
    shorter = np.minimum(own, other)
    length = shorter.shape[1]
    kept = min(max(length // 2, _DRIFTS), length)
    quiet: NDArray[np.bool_] = shorter <= np.sort(shorter)[:, kept - 1 : kept]
    return quiet


Floats: TypeAlias = NDArray[np.float64]


def estimate_drift(time: Int64, difference: Floats) -> tuple[Floats, Floats, Int64]:
    """Return of each row the differences' level at the middle of the time, their slope if significant, and that middle.

    A slope that is not significant is 0.
    """
    middle = (time.min(axis=1) + time.max(axis=1)) // 2
    moment = (time - middle[:, None]).astype(np.float64)
    drift = _drift(moment, difference)
    return median(difference - drift[:, None] * moment, axis=1), drift, middle


def _scatter(values: Floats) -> Floats:
    """Return of each row the standard deviation of a normal distribution with its median absolute deviation."""
    scatter: Floats = 1.4826 * median(np.abs(values - median(values, axis=1)[:, None]), axis=1)
    return scatter


def _causal(shared: SharedCollectives, drifted: Floats, least_spare: int = 0) -> tuple[Floats, Floats]:
    """Return of each row the bounds of the offset beyond which a rank would have left before another arrived.

    The tightest one percent of the collectives is ignored: a wrong bound is worse than a loose one.
    """
    upper = np.sort(shared.other_end_ns - shared.start_ns - drifted)
    lower = np.sort(shared.other_start_ns - shared.end_ns - drifted)
    spare = max(least_spare, upper.shape[1] // 100)
    return lower[:, -1 - spare], upper[:, spare]


def _drift(moment: Floats, difference: Floats) -> Floats:
    """Return of each row the slope if it is significant, else 0: the median over pairs half the capture apart."""
    rows, length = moment.shape
    half = length // 2
    if length < _DRIFTS:
        return np.zeros(rows)
    order = np.argsort(moment, axis=1, kind="stable")
    moment, difference = np.take_along_axis(moment, order, 1), np.take_along_axis(difference, order, 1)
    run = moment[:, -half:] - moment[:, :half]
    apart: NDArray[np.bool_] = np.logical_and.reduce(run > 0, axis=1)
    slopes = (difference[:, -half:] - difference[:, :half]) / np.where(apart[:, None], run, 1.0)
    slope = median(slopes, axis=1)
    moved = np.abs(slope) * (moment[:, -1] - moment[:, 0])
    error = 1.25 * _scatter(slopes) / np.sqrt(half)
    noise = np.maximum(3 * _scatter(difference - slope[:, None] * moment), 2 * _FLOOR_NS)
    return np.where(apart & (np.abs(slope) > 4 * error) & (moved > noise), slope, 0.0)


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
    instance, length = instance[order], (end_ns - start_ns)[order]
    first = np.flatnonzero(np.diff(instance, prepend=-1))
    shortest = np.repeat(np.minimum.reduceat(length, first), np.diff(np.append(first, len(instance))))
    table = instance, device[order], start_ns[order], end_ns[order], shortest
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


_Table = tuple[Int64, NDArray[np.int32], Int64, Int64, Int64]


def _next_level(level: Sequence[int], rows: Sequence[Int64], table: _Table, found: list[Offset | None]) -> list[int]:
    """Find the offsets of all devices that share collectives with this level; return these devices."""
    fresh: dict[int, Offset] = {}
    missing = np.array([offset is None for offset in found])
    for batch in _batches(level if missing.any() else (), rows, table, missing):
        for (hub, other, _), offset in zip(batch, offsets_between([shared for _, _, shared in batch]), strict=True):
            base = found[hub]
            assert base is not None
            chained = base.chain(offset)
            if other not in fresh or chained.uncertainty_ns < fresh[other].uncertainty_ns:
                fresh[other] = chained
    for other, offset in fresh.items():
        found[other] = offset
    return sorted(fresh)


_AT_ONCE = 1 << 18
"""Collectives of pairs of devices that are compared at once: more would take memory, fewer time."""


def _batches(
    level: Sequence[int], rows: Sequence[Int64], table: _Table, missing: NDArray[np.bool_]
) -> Iterator[list[tuple[int, int, SharedCollectives]]]:
    """Yield a device of the level, a *missing* one, and what both share: many such pairs at a time."""
    batch, size = list[tuple[int, int, SharedCollectives]](), 0
    for hub in level:
        own = _neighbors(rows[hub], table, missing)
        batch += [(hub, other, shared) for other, shared in own]
        size += sum(len(shared) for _, shared in own)
        if size >= _AT_ONCE:
            yield batch
            batch, size = [], 0
    yield batch


def _neighbors(rows: Int64, table: _Table, missing: NDArray[np.bool_]) -> list[tuple[int, SharedCollectives]]:
    """Return, for each *missing* device, the collectives it shares with the device of *rows*."""
    instance, device, start_ns, end_ns, shortest = table
    low = np.searchsorted(instance, instance[rows], side="left")
    size = np.searchsorted(instance, instance[rows], side="right") - low
    own, nth = repeated(size)
    own, other = rows[own], low[own] + nth
    chosen = missing[device[other]]
    own, other = own[chosen], other[chosen]
    order = np.argsort(device[other], kind="stable")
    own, other = own[order], other[order]
    which, first = np.unique(device[other], return_index=True)
    parts = zip(np.split(own, first[1:]), np.split(other, first[1:]), strict=True)
    return [
        (int(d), SharedCollectives(start_ns[a], end_ns[a], start_ns[b], end_ns[b], shortest[a]))
        for d, (a, b) in zip(which, parts, strict=False)
    ]


_OPEN = -1
"""Row of a call whose instance is not known yet."""
_REACH_NS = 200_000
"""Largest assumed distance between the ends of one collective, or five times the clocks' uncertainty if larger."""
_LOOSE = 20
"""Factor for kinds in which one rank may leave long before another, such as the root of a broadcast."""
_FAR = 100
"""Factor for pairs without alternatives: both lie between the same two matched calls."""
_ROUNDS = 5
"""Each round corrects the clock by the pairs of the one before, until it finds no more pairs, at most so often."""


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
            offset, drift, middle = estimate_drift(clock.time[a][None], differences.astype(np.float64)[None])
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
