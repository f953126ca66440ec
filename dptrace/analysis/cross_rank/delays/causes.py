"""Why a rank was late: the program segments in which it lost its time, and what it did there.

Between two *program points* (step starts, launches of the same collectives, returns of blocking calls) every rank runs
the same program, so that what one rank took longer there is its own. A late arrival is followed back on the late rank's
device to what held it up:

- a launch: then the host was late. Its lag behind the median early rank is followed back, nearest first, to the program
  segments in which it grew, and what the host did there is compared with what the others' hosts did;
- the end of an earlier collective: then the device computed or copied more since, or left that collective later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks.estimate import Clocks
from dptrace.analysis.cross_rank.delays.delay import Cause
from dptrace.analysis.cross_rank.delays.lateness import Lateness
from dptrace.analysis.cross_rank.delays.program_points import ProgramPoints
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import median
from dptrace.timeline.model import UNKNOWN, HostCause, HostLabel

__all__ = ["HOST_CAUSES", "LateGroup"]

HOST_CAUSES = {
    HostCause.NOTHING_RECORDED: "nothing_recorded",
    HostCause.DATA_LOADING: "data_loading",
    HostCause.ALLOCATOR: "allocator",
    HostCause.SYNCHRONIZING: "synchronizing",
    HostCause.OPERATOR: "host_bound",
    HostCause.PYTHON: "python",
}
_LEAST_NS = 50_000
"""Smallest excess of compute or copies in a segment that counts."""
_ENOUGH = 0.1
"""Share of a lateness that need not be explained."""
_NEGLIGIBLE = 0.02
_NAMED = 0.2
"""Smallest share of a segment's delay that is named on its own."""
_MOST_COMPARED = 16
"""Number of early ranks whose hosts are compared."""


class LateGroup:
    """The late arrivals of one set of devices, and what explains them."""

    def __init__(
        self, lateness: Lateness, matches: Matches, devices: Sequence[DeviceFigures], clocks: Clocks | None
    ) -> None:
        self.lateness, self.matches = lateness, matches
        self.devices = [devices[device] for device in lateness.devices]
        self.hosts = [device.timeline.host for device in self.devices]
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
            if excess[segment, kind] <= _LEAST_NS or left <= _ENOUGH * late:
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
        own = self.hosts[column].spent(int(since[column]), int(until[column]))
        others = [self.hosts[i].spent(int(since[i]), int(until[i])) for i in early[:_MOST_COMPARED].tolist()]
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

    def _cause_of(self, label: HostLabel, column: int) -> Cause:
        kind = HOST_CAUSES[HostCause(label.cause)]
        if self.devices[column].timeline.on_cpu and label.cause == HostCause.OPERATOR:
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
