"""What held up the start of each collective on its own device: the host, or the collective before its work.

::

    host   launch f            launch n            n starts when f has ended; f started when it was launched:
    GPU    ···· f ████████████ n ▒▒▒▒              the launch of f held up n
    GPU    ▒▒ m ▒▒ g ████████ n ▒▒▒▒               g was launched early and followed m: what was computed since m's end
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, union
from dptrace.timeline.model import UNKNOWN, Kind, Timeline

__all__ = ["Arrivals", "arrivals"]

_LATENCY_NS = 20_000
"""A kernel that starts within this after its launch was not queued."""
_HOST_NS = 60_000
"""The same for work launched to a device that had been free."""
_FOLLOWS_NS = 50_000
"""Work that starts within this after a collective's end was waiting for it."""
_PAUSE_NS = 5_000
"""A shorter pause between kernels is not the host's."""
_ROUNDED_NS = 1_000
"""Old traces round times to whole microseconds."""


class Arrivals(msgspec.Struct, frozen=True):
    """One entry per collective of a device, in the order of their starts."""

    launch_ns: Int64
    """Start of its launching call on the host; UNKNOWN where the trace does not have it."""
    held_by_launch_ns: Int64
    """The launch that held it up: its own, or that of the work before it; UNKNOWN where the host was not late."""
    held_by: NDArray[np.int32]
    """The collective of the device, by index, that the work before it followed; -1 without one."""
    launched_ns: Int64
    """Duration of the compute and of the copies launched before it, collectives × 2, from any common origin."""
    computed_ns: Int64
    """Duration of the compute that started before it, from any common origin."""

    def filter(self, chosen: NDArray[np.bool_]) -> Arrivals:
        """Keep some collectives; the indices in ``held_by`` follow, -1 where the collective is not kept."""
        index = np.append(np.where(chosen, np.cumsum(chosen) - 1, -1), -1)
        held_by = index[self.held_by[chosen]].astype(np.int32)
        launch, by_launch = self.launch_ns[chosen], self.held_by_launch_ns[chosen]
        return Arrivals(launch, by_launch, held_by, self.launched_ns[chosen], self.computed_ns[chosen])


def arrivals(timeline: Timeline) -> Arrivals:
    """Find what held up each collective of a device."""
    comm = timeline.kind == Kind.COMMUNICATION
    start, launch, ends = timeline.start_ns[comm], timeline.launch_ns[comm], timeline.end_ns[comm]
    blocks = _Blocks.of(timeline)
    last = blocks.last_explained(start)
    ended_last = blocks.reach_before(start)
    by_end = np.argsort(ends, kind="stable")
    follows = _ended_before(ends, by_end, start, ended_last)
    queued = start - launch
    own = (launch != UNKNOWN) & (queued <= _LATENCY_NS)
    own |= (launch != UNKNOWN) & (queued <= _HOST_NS) & (launch > blocks.busy_until(start))
    if timeline.on_cpu:
        # Its thread starts it as soon as it has a core, unless it carries out another one.
        before = np.append(-1, np.maximum.accumulate(ends))[np.arange(len(ends))]
        own |= (launch != UNKNOWN) & (launch > before)
    none = np.full(len(start), UNKNOWN, np.int64)
    held_launch = np.where(last >= 0, np.append(blocks.launch_ns, UNKNOWN)[last], none)
    held_by = np.where(last >= 0, np.append(blocks.follows, -1)[last], -1)
    held_launch = np.where(own, launch, np.where(follows >= 0, UNKNOWN, held_launch))
    held_by = np.where(own, -1, np.where(follows >= 0, follows, held_by))
    compute = timeline.kind == Kind.COMPUTE
    computed = np.append(0, np.cumsum(timeline.end_ns[compute] - timeline.start_ns[compute]))
    computed = computed[np.searchsorted(timeline.start_ns[compute], start, side="left")]
    return Arrivals(launch, held_launch, held_by.astype(np.int32), _launched(timeline, launch), computed)


def _ended_before(ends: Int64, by_end: Int64, times: Int64, since: Int64) -> Int64:
    """Return for each time the collective that ended just before it, and not before *since*; -1 without one."""
    place = np.searchsorted(ends[by_end], times + _ROUNDED_NS, side="right") - 1
    if not len(ends):
        return np.full(len(times), -1, np.int64)
    found = by_end[np.maximum(place, 0)]
    near = (place >= 0) & (times - ends[found] <= _FOLLOWS_NS) & (ends[found] > since)
    return np.where(near, found, -1)


class _Blocks(msgspec.Struct, frozen=True):
    """Stretches of compute and copies without a gap."""

    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    """The launch that held a block up; UNKNOWN if the host was not late."""
    follows: Int64
    """The collective whose end a block followed; -1 without one."""
    busy: tuple[Int64, Int64]
    """When the device did anything."""

    @classmethod
    def of(cls, timeline: Timeline) -> _Blocks:
        own = timeline.kind != Kind.COMMUNICATION
        busy = union(timeline.start_ns, timeline.end_ns)
        if not own.any():
            nothing = np.empty(0, np.int64)
            return cls(nothing, nothing, nothing, nothing, busy)
        start, launch = timeline.start_ns[own], timeline.launch_ns[own]
        reach = np.maximum.accumulate(timeline.end_ns[own])
        first = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
        begun, called = start[first], launch[first]
        ended = np.append(0, reach[first[1:] - 1])  # end of the block before
        late = (called > ended) & (begun - called <= _HOST_NS) & (begun - ended > _PAUSE_NS)
        late &= called > _busy_until(busy, begun)
        ends = timeline.end_ns[~own]
        follows = _ended_before(ends, np.argsort(ends, kind="stable"), begun, ended)
        last = np.append(first[1:], len(reach)) - 1
        return cls(begun, reach[last], np.where(late, called, UNKNOWN), np.where(late, -1, follows), busy)

    def last_explained(self, times: Int64) -> Int64:
        """Return the last block before each time whose start is explained, by the host or by a collective; or -1."""
        explained = np.where((self.launch_ns != UNKNOWN) | (self.follows >= 0), np.arange(len(self.start_ns)), -1)
        latest = np.append(-1, np.maximum.accumulate(explained))
        found: Int64 = latest[np.searchsorted(self.start_ns, times, side="left")]
        return found

    def reach_before(self, times: Int64) -> Int64:
        """Return the end of the last block that started before each time; 0 without one."""
        ended: Int64 = np.append(0, self.end_ns)[np.searchsorted(self.start_ns, times, side="left")]
        return np.minimum(ended, times)

    def busy_until(self, times: Int64) -> Int64:
        return _busy_until(self.busy, times)


def _busy_until(busy: tuple[Int64, Int64], times: Int64) -> Int64:
    """Return when the device's last work that started before each time ended; -1 without any."""
    ended: Int64 = np.append(-1, busy[1])[np.searchsorted(busy[0], times - 1, side="left")]
    return ended


def _launched(timeline: Timeline, launch: Int64) -> Int64:
    """Return for each collective the duration of compute and of copies launched before it, collectives × 2."""
    columns = []
    for kind in (Kind.COMPUTE, Kind.MEMORY):
        own = np.flatnonzero((timeline.kind == kind) & (timeline.launch_ns != UNKNOWN))
        own = own[np.argsort(timeline.launch_ns[own], kind="stable")]
        total = np.append(0, np.cumsum(timeline.end_ns[own] - timeline.start_ns[own]))
        columns.append(total[np.searchsorted(timeline.launch_ns[own], launch, side="right")])
    return np.stack(columns, axis=1)
