"""Stragglers: which rank kept the others waiting at a collective, what it cost them, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks import Clocks
from dptrace.analysis.cross_rank.transfers import aligned_starts
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import Int64, covered, median, repeated
from dptrace.timeline.model import UNKNOWN, HostCause, HostLabel, Kind

# A delay: time that one rank lost in one segment of the program, with its cause and what it cost the others.


CAUSES = (
    "compute",
    "memory_copies",
    "data_loading",
    "allocator",
    "synchronizing",
    "host_bound",
    "python",
    "slower_host",
    "no_core",
    "nothing_recorded",
    "unlevel_start",
    "before_recording",
    "uneven_end",
    "passed_on",
    "unknown",
)
"""Why a rank was late: its device computed or copied longer; its host loaded data, allocated memory, synchronized,
was in an operator, in Python code outside operators, slower throughout, or without a core; its host did nothing that is
recorded; its recording began at another point of the program, or the work was launched before it; it left an earlier
collective later; it waited for another rank itself; or the trace does not show why."""


class Cause(NamedTuple):
    """Why a rank lost time in a segment."""

    kind: str
    """One of CAUSES."""
    what: str = ""
    where: str = ""


class Key(NamedTuple):
    """A delay: a device, the program point at the end of the segment, and the cause."""

    device: int
    point: int
    cause: Cause


@dataclass
class Delay:
    """Time that one rank lost in one segment of the program, and what it cost the others."""

    device: int
    cause: str
    """One of CAUSES."""
    what: str
    """The call, operator, kernel or annotation; empty where there is none or there are many."""
    where: str
    """The annotation or operator around it; may be empty."""
    waiting: tuple[int, ...]
    """The devices that waited, at the collective where it was largest."""
    start_ns: int
    end_ns: int
    """The segment, on the device's own clock; both 0 if it is before the first program point."""
    group_size: int = 0
    """Number of ranks in the group: those that wait, and those that are late."""
    late_ns: int = 0
    """The largest lateness it caused."""
    cost_ns: float = 0.0
    """Exposed wait of the mean early rank, over all collectives it reached."""
    collectives: list[int] = field(default_factory=list)
    """The collectives it reached, by index into the matches."""


@dataclass
class Arrival:
    """One late rank at one collective."""

    instance: int
    device: int
    late_ns: int
    cost_ns: float
    delay: Key


# Name the kernel behind a delay in compute: the one that took longer than on the ranks that waited.

_MAX_NAMED = 20
"""Number of delays that are named, the most expensive first: each takes a search through the intervals."""
_MAX_COMPARED = 4
_KINDS = {"compute": Kind.COMPUTE, "memory_copies": Kind.MEMORY}


def name_slow_kernels(delays: Sequence[Delay], matches: Matches, devices: Sequence[DeviceFigures]) -> None:
    """Set ``what`` of the delays in compute and copies, in place; it stays empty where intervals were dropped."""
    wanted = [delay for delay in delays if delay.cause in _KINDS and not delay.what]
    for delay in wanted[:_MAX_NAMED]:
        own = _kernels(delay, delay.device, matches, devices)
        others = [_kernels(delay, device, matches, devices) for device in delay.waiting[:_MAX_COMPARED]]
        excess = {name: ns - float(median([other[name] for other in others])) for name, ns in own.items()}
        if excess and (name := max(excess, key=lambda name: excess[name])) and excess[name] > 0:
            delay.what = name


def _kernels(delay: Delay, device: int, matches: Matches, devices: Sequence[DeviceFigures]) -> Counter[str]:
    """Return the ns by name of what ran on a device from the previous to the first collective that was delayed."""
    instance, kind = delay.collectives[0], _KINDS[delay.cause]
    until = int(matches.start_ns[(matches.instance == instance) & (matches.device == device)][0])
    own = matches.end_ns[(matches.device == device) & (matches.end_ns < until)]
    timeline = devices[device].timeline
    since = int(own.max(initial=0))
    chosen = (timeline.kind == kind) & (timeline.start_ns >= since) & (timeline.start_ns < until)
    total: Counter[str] = Counter()
    for name, ns in zip(
        timeline.name[chosen].tolist(), (timeline.end_ns - timeline.start_ns)[chosen].tolist(), strict=True
    ):
        total[timeline.names[name]] += ns
    return total


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


class Lateness(msgspec.Struct, frozen=True, dict=True):
    """The synchronizing collectives of one set of devices: arrays of rows × devices."""

    devices: tuple[int, ...]
    rows: Int64
    """Index of each collective into the matches."""
    members: Int64
    """Index of each member into the matches."""
    start_ns: Int64
    """Starts on the reference's clock, if clocks are aligned."""
    wait_ns: Int64
    early: NDArray[np.bool_]
    late_ns: Int64
    """Lateness after the median early rank; 0 for early ranks."""
    cost_ns: Floats
    """What each late rank cost the mean early rank: the exposed wait, at most the lateness, shared among late ranks."""


def latenesses(
    matches: Matches, devices: Sequence[DeviceFigures], clocks: Clocks | None, align: bool = True
) -> Iterator[Lateness]:
    """Yield the lateness of each set of devices that shares synchronizing collectives.

    Args:
        clocks: offsets of the devices' clocks; None to use the waits alone.
        align: compare starts; otherwise use the waits alone.
    """
    start = aligned_starts(matches, clocks) if clocks is not None else matches.start_ns
    for rows, members in _sets(matches, clocks):
        own = tuple(matches.device[members[0]].tolist())
        length = matches.end_ns[members] - matches.start_ns[members]
        wait = length - length.min(axis=1, keepdims=True)
        after_first = wait.max(axis=1, keepdims=True) - wait
        if clocks is not None and align:
            by_clock = start[members] - start[members].min(axis=1, keepdims=True)
            uncertainty = max(int(clocks.uncertainty_ns[device]) for device in own)
            after_first = np.minimum(after_first, by_clock + uncertainty)
        early, late = _divide(after_first, _MIN_LATE_NS)
        cost = _shares(late) * _scale(late, early, _exposed_wait(matches, devices, own, members, wait))[:, None]
        yield Lateness(own, rows, members, start[members], wait, early, late, cost)


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
    matches: Matches, devices: Sequence[DeviceFigures], own: tuple[int, ...], members: Int64, wait: Int64
) -> Int64:
    """Return the part of each wait that no compute hides; concurrent collectives share it."""
    exposed = np.empty_like(wait)
    for column, device in enumerate(own):
        figures, start = devices[device], matches.start_ns[members[:, column]]
        within = covered(figures.exposed, start + wait[:, column]) - covered(figures.exposed, start)
        shared = figures.shared_exposed()[matches.index[members[:, column]]]
        exposed[:, column] = np.minimum(within, shared)
    return exposed


# Points of the program that all ranks of a group pass: between two of them, all run the same code.


class ProgramPoints(msgspec.Struct, frozen=True, dict=True):
    """Step starts, launches of the group's collectives, and returns of blocking calls: points × devices, ascending."""

    own_ns: Int64
    """On each device's own host clock."""
    aligned_ns: Int64
    """On the reference's clock."""
    of_row: NDArray[np.int64]
    """The point of each collective's launch; -1 where a launch is not recorded."""

    def __len__(self) -> int:
        return len(self.own_ns)

    @classmethod
    def of(
        cls, devices: Sequence[DeviceFigures], numbers: Sequence[int], launch_ns: Int64, clocks: Clocks | None
    ) -> ProgramPoints:
        """Find the points of a group.

        Args:
            devices: the figures of the group's devices.
            numbers: their indices into the clocks.
            launch_ns: launches of the group's collectives on each host's own clock, rows × devices.
            clocks: offsets of the clocks; None to use each device's own.
        """

        def align(own: Int64) -> Int64:
            columns = [clocks.align(n, own[:, i]) if clocks else own[:, i] for i, n in enumerate(numbers)]
            return np.stack(columns, axis=1)

        known = np.flatnonzero((launch_ns != UNKNOWN).all(axis=1))
        points = np.concatenate([_step_starts(devices), launch_ns[known]])
        row = np.concatenate([np.full(len(points) - len(known), -1), known])
        order = np.argsort(median(align(points), axis=1), kind="stable")
        points, row = _with_returns(devices, points[order], row[order])
        of_row = np.full(len(launch_ns), -1, np.int64)
        of_row[row[row >= 0]] = np.flatnonzero(row >= 0)
        return cls(points, align(points), of_row)

    def segment(self, point: int, column: int) -> tuple[int, int]:
        """Return start and end of the segment that ends at a point, on a device's own clock; 0, 0 if there is none."""
        if point < 0 or not len(self):
            return 0, 0
        return int(self.own_ns[max(point - 1, 0), column]), int(self.own_ns[point, column])


def _step_starts(devices: Sequence[DeviceFigures]) -> Int64:
    """Return the starts on the host of the steps that all devices have, steps × devices."""
    starts = []
    for device in devices:
        host, names = device.timeline.host, device.timeline.windows.names
        starts.append(dict(zip(names, host.step_ns.tolist(), strict=False)))
    common = [name for name in starts[0] if all(name in others for others in starts[1:])]
    rows = [[own[name] for own in starts] for name in common]
    return np.array(rows, np.int64).reshape(-1, len(devices))


def _with_returns(
    devices: Sequence[DeviceFigures], points: Int64, row: NDArray[np.int64]
) -> tuple[Int64, NDArray[np.int64]]:
    """Add the returns of blocking calls between two points where all devices have equally many: hosts become level."""
    if not len(points):
        return points, row
    returned = [device.timeline.host.returned_ns for device in devices]
    passed = np.stack([np.searchsorted(r, points[:, i], side="right") for i, r in enumerate(returned)], axis=1)
    count = np.diff(passed, axis=0)
    level = np.flatnonzero((count == count[:, :1]).all(axis=1) & (count[:, 0] > 0))
    if not len(level):
        return points, row
    which, nth = repeated(count[level, 0])
    index = passed[level[which]] + nth[:, None]
    calls = np.stack([r[index[:, i]] for i, r in enumerate(returned)], axis=1)
    after = level[which] + 1  # np.insert places each before this point, in order
    return np.insert(points, after, calls, axis=0), np.insert(row, after, -1)


# Why a rank was late: the program segments in which it lost its time, and what it did there.
#
# Between two *program points* (step starts, launches of the same collectives, returns of blocking calls) every rank
# runs the same program, so that what one rank took longer there is its own. A late arrival is followed back on the late
# rank's device to what held it up:
#
# - a launch: then the host was late. Its lag behind the median early rank is followed back, nearest first, to the
#   program
#   segments in which it grew, and what the host did there is compared with what the others' hosts did;
# - the end of an earlier collective: then the device computed or copied more since, or left that collective later.

HOST_CAUSES = {
    HostCause.NOTHING_RECORDED: "nothing_recorded",
    HostCause.DATA_LOADING: "data_loading",
    HostCause.ALLOCATOR: "allocator",
    HostCause.SYNCHRONIZING: "synchronizing",
    HostCause.OPERATOR: "host_bound",
    HostCause.PYTHON: "python",
}
_MIN_EXCESS_NS = 50_000
"""Smallest excess of compute or copies in a segment that counts."""
_ENOUGH = 0.1
"""Share of a lateness that need not be explained."""
_NEGLIGIBLE = 0.02
_NAMED = 0.2
"""Smallest share of a segment's delay that is named on its own."""
_MAX_COMPARED_HOSTS = 16
"""Number of early ranks whose hosts are compared."""


class LateGroup:
    """The late arrivals of one set of devices, and what explains them."""

    def __init__(
        self, lateness: Lateness, matches: Matches, devices: Sequence[DeviceFigures], clocks: Clocks | None
    ) -> None:
        self.lateness, self.matches = lateness, matches
        self.devices = [devices[device] for device in lateness.devices]
        self.hosts = [device.timeline.host for device in self.devices]
        self._known: dict[tuple[int, int], Mapping[HostLabel, int]] = {}
        self.on_cpu = [device.timeline.on_cpu for device in self.devices]
        index = matches.index[lateness.members]
        arrivals = [device.arrivals for device in self.devices]
        columns = list(zip(arrivals, index.T, strict=True))
        self.launch_ns = np.stack([own.launch_ns[i] for own, i in columns], axis=1)
        self.held_by_launch_ns = np.stack([own.held_by_launch_ns[i] for own, i in columns], axis=1)
        self.held_by = np.stack([own.held_by[i] for own, i in columns], axis=1)
        self.work_ns = np.stack([own.launched_ns[i] for own, i in columns], axis=1)
        self.computed_ns = np.stack([own.computed_ns[i] for own, i in columns], axis=1)
        self.points = ProgramPoints.of(self.devices, lateness.devices, self.launch_ns, clocks)
        self.launch_order = np.where(self.points.of_row >= 0, self.points.of_row, np.arange(len(lateness.rows)))
        self.row_of = [
            {int(number): row for row, number in enumerate(index[:, column])} for column in range(len(self.devices))
        ]
        self._in_order = np.argsort(self.launch_order, kind="stable")
        self._place = np.argsort(self._in_order, kind="stable")
        self.ends_ns = lateness.start_ns + (matches.end_ns - matches.start_ns)[lateness.members]

    def explain(self, row: int, column: int) -> dict[tuple[int, Cause], float]:
        """Divide a lateness among (program point, cause), in ns; what is missing to the lateness is small."""
        late = int(self.lateness.late_ns[row, column])
        point = int(self.points.of_row[row])
        if point < 0:
            return {(-1, self._without_launch(row, column, late)): late}
        first, previous = self._held_up_at(row, column)
        if previous is None and first is None and self._waited_for_another(row, column, late):
            return {(point, Cause("passed_on")): late}
        found: dict[tuple[int, Cause], float] = {}
        left = self._extra_work(row, column, 0 if first is None else first, previous, late, found)
        if previous is not None or first is None:
            left = self._after_collective(row, column, previous, left, late, found)
            if left > _ENOUGH * late:
                found[point, Cause("unknown")] = left
            return found
        self._host_lag(row, column, min(first, len(self.points) - 1), left, late, found)
        return found

    def _without_launch(self, row: int, column: int, late: int) -> Cause:
        """Name the cause at a collective whose launch is not recorded: what the device did since the one before."""
        place = int(self._place[row])
        if not self.matches.step[self.lateness.rows[row]] or (self.points.of_row[self._in_order[place:]] >= 0).any():
            return Cause("before_recording")
        ran = self.computed_ns[row] - (self.computed_ns[self._in_order[place - 1]] if place else 0)
        excess = float(ran[column] - median(ran[self._early(row)]))
        return Cause("compute" if excess > late / 2 else "unknown")

    def _held_up_at(self, row: int, column: int) -> tuple[int | None, int | None]:
        """Return the program point of the launch, or the row of the collective, that held up an arrival."""
        launch = int(self.held_by_launch_ns[row, column])
        if launch != UNKNOWN:
            return int(np.searchsorted(self.points.own_ns[:, column], launch)), None
        held_by = int(self.held_by[row, column])
        previous = self.row_of[column].get(held_by) if held_by >= 0 else None
        return None, previous

    def _waited_for_another(self, row: int, column: int, late: int) -> bool:
        """Return whether the rank came from a collective of another group in which it waited for most of its delay."""
        held_by = int(self.held_by[row, column])
        if held_by < 0:
            return False
        device, matches = self.lateness.devices[column], self.matches
        member = np.flatnonzero((matches.device == device) & (matches.index == held_by))
        if not len(member):
            return False
        instance = int(matches.instance[member[0]])
        several = slice(int(matches.first[instance]), int(matches.first[instance + 1]))
        length = (matches.end_ns - matches.start_ns)[several]
        own = int((matches.end_ns - matches.start_ns)[member[0]])
        return bool(matches.complete[instance]) and own - int(length.min()) > late / 2

    def _extra_work(
        self,
        row: int,
        column: int,
        first: int,
        previous: int | None,
        left: float,
        found: dict[tuple[int, Cause], float],
    ) -> float:
        """Attribute compute and copies beyond the early ranks', by program segment; return what remains."""
        late, early = left, self._early(row)
        since = int(self._place[previous]) + 1 if previous is not None else 0
        rows = self._in_order[since : int(self._place[row]) + 1]
        rows = rows[self.points.of_row[rows] >= first]
        before = self._in_order[np.maximum(self._place[rows] - 1, 0)]
        work = self.work_ns[rows] - self.work_ns[before]
        excess = work[:, column] - median(work[:, early], axis=1)
        for place in np.argsort(-excess, axis=None, kind="stable").tolist():
            segment, kind = divmod(place, 2)
            if excess[segment, kind] <= _MIN_EXCESS_NS or left <= _ENOUGH * late:
                break
            took = min(float(excess[segment, kind]), left)
            if took > _ENOUGH * late:
                key = int(self.points.of_row[rows[segment]]), Cause(("compute", "memory_copies")[kind])
                found[key] = found.get(key, 0.0) + took
                left -= took
        return left

    def _after_collective(
        self,
        row: int,
        column: int,
        previous: int | None,
        left: float,
        late: int,
        found: dict[tuple[int, Cause], float],
    ) -> float:
        """Attribute what the device did since it and the early ranks were level; return what remains."""
        if previous is None or left <= _ENOUGH * late:
            return left
        early, point = self._early(row), int(self.points.of_row[row])
        # A CUDA graph launches the work of many segments at once: compare by device time instead.
        ran = self.computed_ns[row] - self.computed_ns[previous]
        excess = float(ran[column] - median(ran[early]))
        if excess > left / 2:
            found[point, Cause("compute")] = found.get((point, Cause("compute")), 0.0) + min(excess, left)
            left -= min(excess, left)
        skew = float(self.ends_ns[previous, column] - median(self.ends_ns[previous, early]))
        if left > _ENOUGH * late and skew > left / 2:
            kind = str(self.matches.kind[self.lateness.rows[previous]])
            found[int(self.points.of_row[previous]), Cause("uneven_end", kind)] = min(skew, left)
            left -= min(skew, left)
        return left

    def _host_lag(
        self, row: int, column: int, point: int, left: float, late: int, found: dict[tuple[int, Cause], float]
    ) -> None:
        """Attribute a host's lag to the segments in which it grew, nearest first.

        Older lag only used up the lead that the host had over its device.
        """
        early = self._early(row)
        lag = self.points.aligned_ns[: point + 1, column] - median(self.points.aligned_ns[: point + 1, early], axis=1)
        least = float(lag[point])
        while point >= 0 and least > 0 and left > max(_NEGLIGIBLE * late, 1000):
            below = min(least, float(lag[point - 1])) if point else 0.0
            took = min(max(least - below, 0.0), left)
            if took > _NEGLIGIBLE * late:
                for cause, part in self._host_causes(point, column, took, early).items():
                    found[point, cause] = found.get((point, cause), 0.0) + part
            left, least, point = left - took, below, point - 1
        if left > _ENOUGH * late:
            end = int(self.points.of_row[row]), Cause("unknown")
            found[end] = found.get(end, 0.0) + left

    def _host_causes(self, point: int, column: int, took: float, early: NDArray[np.intp]) -> dict[Cause, float]:
        """Name what a host did longer than the early ranks' hosts in the segment that ends at a program point."""
        if point == 0:
            return {Cause("unlevel_start"): took}
        since, until = self.points.own_ns[point - 1], self.points.own_ns[point]
        compared = [column, *early[:_MAX_COMPARED_HOSTS].tolist()]
        times = since[compared].tolist(), until[compared].tolist()
        own, *others = (self._spent(i, point, *span) for i, *span in zip(compared, *times, strict=True))
        excess = _excess(own, others)
        total = sum(excess.values())
        large = {label: ns for label, ns in excess.items() if ns >= _NAMED * min(took, total)}
        causes: dict[Cause, float] = {}
        for label, ns in large.items():
            cause = self._cause_of(label, column)
            causes[cause] = causes.get(cause, 0.0) + took * ns / max(total, took)
        if (rest := took - sum(causes.values())) > _NAMED * took:
            many = total - sum(large.values()) >= rest / 2
            causes[Cause("slower_host", "", _most_frequent_place(excess)) if many else Cause("unknown")] = rest
        return causes

    def _spent(self, column: int, point: int, since: int, until: int) -> Mapping[HostLabel, int]:
        """Return what a host did in the segment that ends at a point: many late ranks are compared with the same."""
        if (column, point) not in self._known:
            self._known[column, point] = self.hosts[column].spent(since, until)
        return self._known[column, point]

    def _cause_of(self, label: HostLabel, column: int) -> Cause:
        kind = HOST_CAUSES[HostCause(label.cause)]
        if label.cause == HostCause.OPERATOR and self.on_cpu[column]:
            kind = "compute"  # without a GPU, operators are the compute
        return Cause(kind, label.what, label.where)

    def _early(self, row: int) -> NDArray[np.intp]:
        return np.flatnonzero(self.lateness.early[row])


def _excess(own: Mapping[HostLabel, int], others: Sequence[Mapping[HostLabel, int]]) -> dict[HostLabel, float]:
    """Return what a host did longer than the median of the others; waiting for other ranks is not its own doing."""
    from statistics import median

    labels = [label for label in own if label.cause != HostCause.PASSIVE]
    excess = {label: own[label] - median(other.get(label, 0) for other in others) for label in labels}
    return {label: ns for label, ns in excess.items() if ns > 0}


def _most_frequent_place(excess: Mapping[HostLabel, float]) -> str:
    places: dict[str, float] = {}
    for label, ns in excess.items():
        place = label.where or label.what
        places[place] = places.get(place, 0.0) + ns
    return max(places, key=lambda place: places[place])


# Where late ranks lost their time: each delay once, with its cause and the waiting that it caused.
#
# A delay may reach one collective after the other; :func:`delays_of` adds up what ranks waited for it there. That is a
# measured figure, and a bound: what a step would gain without the delay is the replay's to say.


def delays_of(
    lateness: Lateness, matches: Matches, devices: Sequence[DeviceFigures], clocks: Clocks | None
) -> tuple[list[Arrival], dict[Key, Delay]]:
    """Explain the late arrivals of one set of devices.

    Returns:
        the arrivals in the order of the collectives, and the delays by key.
    """
    if lateness.early.all():
        return [], {}
    group = LateGroup(lateness, matches, devices, clocks)
    arrivals: list[Arrival] = []
    delays: dict[Key, Delay] = {}
    for row in np.argsort(group.launch_order, kind="stable").tolist():
        for column in np.flatnonzero(lateness.late_ns[row]).tolist():
            late_ns, cost_ns = int(lateness.late_ns[row, column]), float(lateness.cost_ns[row, column])
            causes = group.explain(row, column)
            keys = {
                Key(lateness.devices[column], point, cause): share for (point, cause), share in causes.items() if share
            }
            whole = max(sum(keys.values()), 1.0)
            main = max(keys, key=lambda key: keys[key])
            arrivals.append(Arrival(int(lateness.rows[row]), lateness.devices[column], late_ns, cost_ns, main))
            for key, share in keys.items():
                delay = delays.setdefault(key, _new(group, key, column))
                delay.cost_ns += share / whole * cost_ns
                _reach(group, delay, row, share)
    return arrivals, delays


def _new(group: LateGroup, key: Key, column: int) -> Delay:
    start, end = group.points.segment(key.point, column)
    return Delay(key.device, *key.cause, (), start, end, len(group.lateness.devices))


def _reach(group: LateGroup, delay: Delay, row: int, late_ns: float) -> None:
    """Count a collective at which a delay made its rank late."""
    lateness = group.lateness
    if late_ns > delay.late_ns:
        delay.late_ns = int(late_ns)
        delay.waiting = tuple(compress(lateness.devices, lateness.early[row].tolist()))
    delay.collectives.append(int(lateness.rows[row]))


class Stragglers(msgspec.Struct, frozen=True, dict=True):
    """One row per rank that was late at a collective, in the order of the matches."""

    instance: Int64
    """Index into the matches."""
    device: NDArray[np.int32]
    """Index of the late device."""
    late_ns: Int64
    """Lateness after the median early rank."""
    cost_ns: Int64
    """What it cost the mean early rank: the exposed wait that no other delay explains already."""
    cause: tuple[str, ...]
    """The main cause of each, one of CAUSES."""
    delay: Int64
    """Index into ``delays`` of the main delay behind each."""
    delays: tuple[Delay, ...]
    """The delays behind the latenesses, each once, the most expensive first."""

    def __len__(self) -> int:
        return len(self.instance)

    def latest(self, instances: int) -> NDArray[np.int32]:
        """Return the latest device at each of this many collectives; -1 where none was late."""
        latest = np.full(instances, -1, np.int32)
        order = np.argsort(self.late_ns, kind="stable")
        latest[self.instance[order]] = self.device[order]
        return latest


def stragglers(
    matches: Matches, devices: Sequence[DeviceFigures], clocks: Clocks | None = None, align: bool = True
) -> Stragglers:
    """Find the ranks that were late at each synchronizing collective of which all ranks are recorded, and why.

    Args:
        clocks: offsets of the devices' clocks; None to use the waits alone.
        align: compare starts on aligned clocks; otherwise use the waits alone.
    """
    arrivals: list[tuple[Arrival, tuple[int, Key]]] = []
    found: dict[tuple[int, Key], Delay] = {}
    for group, lateness in enumerate(latenesses(matches, devices, clocks, align)):
        own, delays = delays_of(lateness, matches, devices, clocks if align else None)
        arrivals += [(arrival, (group, arrival.delay)) for arrival in own]
        found |= {(group, key): delay for key, delay in delays.items()}
    # In whole ns: of delays that were made up for, rounding leaves a different trace with each version of Python.
    by_cost = sorted(found, key=lambda key: -round(found[key].cost_ns))
    number = {key: place for place, key in enumerate(by_cost)}
    ordered = tuple(found[key] for key in by_cost)
    name_slow_kernels(ordered, matches, devices)
    arrivals.sort(key=lambda pair: (pair[0].instance, pair[0].late_ns))
    return Stragglers(
        instance=np.array([arrival.instance for arrival, _ in arrivals], np.int64),
        device=np.array([arrival.device for arrival, _ in arrivals], np.int32),
        late_ns=np.array([arrival.late_ns for arrival, _ in arrivals], np.int64),
        cost_ns=np.array([round(arrival.cost_ns) for arrival, _ in arrivals], np.int64),
        cause=tuple(arrival.delay.cause.kind for arrival, _ in arrivals),
        delay=np.array([number[key] for _, key in arrivals], np.int64),
        delays=ordered,
    )
