"""Stragglers: which rank kept the others waiting at a collective, what it cost them, and why."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks.estimate import Clocks
from dptrace.analysis.cross_rank.delays.attribution import delays_of
from dptrace.analysis.cross_rank.delays.delay import CAUSES, Arrival, Delay, Key
from dptrace.analysis.cross_rank.delays.lateness import latenesses
from dptrace.analysis.cross_rank.delays.slow_kernels import name_slow_kernels
from dptrace.analysis.matching.match import Matches
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import Int64

__all__ = ["CAUSES", "Delay", "Stragglers", "stragglers"]


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
