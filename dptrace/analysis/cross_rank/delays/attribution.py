"""Where late ranks lost their time: each delay once, with its cause and the waiting that it caused.

A delay may reach one collective after the other; :func:`delays_of` adds up what ranks waited for it there. That is a
measured figure, and a bound: what a step would gain without the delay is the replay's to say.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dptrace.analysis.cross_rank.clocks.estimate import Clocks
from dptrace.analysis.cross_rank.delays.causes import LateGroup
from dptrace.analysis.cross_rank.delays.delay import Arrival, Delay, Key
from dptrace.analysis.cross_rank.delays.lateness import Lateness
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures

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
        delay.waiting = tuple(lateness.devices[i] for i in np.flatnonzero(lateness.early[row]).tolist())
    delay.collectives.append(int(lateness.rows[row]))
