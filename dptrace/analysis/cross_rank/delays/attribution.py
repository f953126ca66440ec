"""Where late ranks lost their time: each delay once, with its cause and what it cost.

A delay may reach one collective after the other. :class:`_DelayAttribution` counts it once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks.estimate import Clocks
from dptrace.analysis.cross_rank.delays.causes import LateGroup
from dptrace.analysis.cross_rank.delays.delay import Arrival, Delay, Key
from dptrace.analysis.cross_rank.delays.lateness import Lateness
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.arrays import median
from dptrace.core.intervals import Int64, covered
from dptrace.timeline.host import HostCause

__all__ = ["delays_of"]


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
    attribution = _DelayAttribution(group)
    for row in np.argsort(group.launch_order, kind="stable").tolist():
        attribution.add(row)
    return attribution.arrivals, attribution.delays


class _DelayAttribution:
    """Counts a delay once, however many collectives it reaches.

    The shift is the group's lag behind its undisturbed schedule. Where the early ranks' hosts would have been late by
    themselves, that much of an earlier delay is made up for, and is refunded. So a delay that is carried along costs
    once; one that is paid in installments adds up.
    """

    def __init__(self, group: LateGroup) -> None:
        self.group = group
        self.arrivals: list[Arrival] = []
        self.delays: dict[Key, Delay] = {}
        self._shift = 0.0
        self._open: list[tuple[Key, Arrival, list[float]]] = []
        self._held = np.zeros(len(group.devices))
        self._blocked_ns = _blocked_before(group)
        self._previous: int | None = None

    def add(self, row: int) -> None:
        """Account for one collective; rows come in the order of their launches."""
        late = np.flatnonzero(self.group.lateness.late_ns[row])
        now = self._arrive(row, late)
        if now or self._shift > 0:
            self._refund(row, late, now)
        self._previous = row

    def _arrive(self, row: int, late: NDArray[np.intp]) -> dict[Key, tuple[float, Arrival]]:
        """Record the late ranks of a row; return the cost of each delay here."""
        lateness, now = self.group.lateness, dict[Key, tuple[float, Arrival]]()
        for column in late.tolist():
            late_ns, cost_ns = int(lateness.late_ns[row, column]), float(lateness.cost_ns[row, column])
            causes = self.group.explain(row, column)
            keys = {
                Key(lateness.devices[column], point, cause): share for (point, cause), share in causes.items() if share
            }
            whole = max(sum(keys.values()), 1.0)
            main = max(keys, key=lambda key: keys[key])
            arrival = Arrival(int(lateness.rows[row]), lateness.devices[column], late_ns, cost_ns, main)
            self.arrivals.append(arrival)
            for key, share in keys.items():
                now[key] = share / whole * cost_ns, arrival
                self._delay(key, row, column, share)
        return now

    def _delay(self, key: Key, row: int, column: int, late_ns: float) -> None:
        lateness, points = self.group.lateness, self.group.points
        waiting = tuple(lateness.devices[i] for i in np.flatnonzero(lateness.early[row]).tolist())
        delay = self.delays.get(key)
        if delay is None:
            start, end = points.segment(key.point, column)
            delay = self.delays[key] = Delay(key.device, *key.cause, waiting, start, end, len(lateness.devices))
        if late_ns > delay.late_ns:
            delay.late_ns, delay.waiting = int(late_ns), waiting
        delay.collectives.append(int(lateness.rows[row]))

    def _refund(self, row: int, late: NDArray[np.intp], now: Mapping[Key, tuple[float, Arrival]]) -> None:
        lateness, cost = self.group.lateness, sum(amount for amount, _ in now.values())
        blocked = self._blocked_ns[row] - self._blocked_ns[self._previous] if self._previous is not None else 0.0
        self._held = np.minimum(self._shift, self._held + np.maximum(blocked, 0.0))
        self._held[late] += cost
        early = lateness.early[row]
        queued = np.maximum(self.group.points.queued_ns(row, lateness.start_ns[row]), 0) + self._held
        back = max(0.0, self._shift - float(median(queued[early])))
        self._shift += cost - back
        for key, arrival, left in sorted(self._open, key=lambda entry: entry[0] not in now):
            took = min(left[0], back)
            left[0] -= took
            back -= took
            self.delays[key].cost_ns -= took
            arrival.cost_ns -= took
        self._open = [entry for entry in self._open if entry[2][0] > 0]
        for key, (amount, arrival) in now.items():
            self.delays[key].cost_ns += amount
            self._open.append((key, arrival, [amount]))


def _blocked_before(group: LateGroup) -> NDArray[np.float64]:
    """Return how long each host had been in calls that wait for its device, before each launch: rows × devices."""
    columns = []
    for column, host in enumerate(group.hosts):
        blocked = host.intervals(HostCause.SYNCHRONIZING, HostCause.PASSIVE)
        columns.append(covered(blocked, group.launch_ns[:, column]))
    table: Int64 = np.stack(columns, axis=1)
    return table.astype(np.float64)
