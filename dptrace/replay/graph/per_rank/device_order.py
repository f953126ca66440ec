"""The device side of one process: what follows what on a stream, what launched it, and the lags of both."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, median, unique
from dptrace.replay.graph.model import EdgeKind, Edges
from dptrace.replay.graph.per_rank.events import RankEvents
from dptrace.replay.graph.per_rank.host_events import HostEvents, previous_in_group

__all__ = ["US", "DeviceOrder", "device_order", "mean_up_to"]

US = 1000
_DEFAULT_LATENCY_NS = 8 * US
"""Launch latency of a process whose device is always busy, so that none can be measured."""
_CERTAINLY_QUEUED_NS = 50 * US
"""A kernel launched this long before its predecessor ended was waiting in the queue."""
_LONGEST_GAP_NS = 10 * US
_OVERLAP_NS = 50 * US
"""Neighbors that overlap by more than this are not one after the other."""
_FEWEST_SAMPLES = 8


class DeviceOrder(msgspec.Struct, frozen=True):
    """The device intervals of one process, sorted by start; one entry per interval in each column."""

    start_ns: Int64
    end_ns: Int64
    lane: NDArray[np.int64]
    """Number of its device and stream, from 0."""
    lanes: int
    communication: NDArray[np.bool_]
    launched_by: Int64
    """Index of the host event that launched it, or -1."""
    previous: Int64
    """The interval before it on its stream, or -1."""
    latency_ns: Int64
    """From the start of the launching call to the start of an interval whose stream is idle: the median of its API."""
    gap_ns: int
    """Between neighbors that wait in a stream's queue."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def last_launched(self, before: Int64) -> Int64:
        """Return for each host event and each lane the last interval launched before it, or -1: events × lanes."""
        table = np.full((len(before), self.lanes), -1, np.int64)
        for lane in range(self.lanes):
            own = np.flatnonzero((self.lane == lane) & (self.launched_by >= 0))
            own = own[np.argsort(self.launched_by[own], kind="stable")]
            place = np.searchsorted(self.launched_by[own], before) - 1
            table[:, lane] = np.where(place >= 0, own[place] if len(own) else -1, -1)
        return table

    def next_launched(self, after: Int64) -> Int64:
        """Return for each host event and each lane the first interval launched after it, or -1: events × lanes."""
        table = np.full((len(after), self.lanes), -1, np.int64)
        for lane in range(self.lanes):
            own = np.flatnonzero((self.lane == lane) & (self.launched_by >= 0))
            own = own[np.argsort(self.launched_by[own], kind="stable")]
            place = np.searchsorted(self.launched_by[own], after, side="right")
            table[:, lane] = np.append(own, -1)[place]
        return table

    def add_edges(self, edges: Edges, host: HostEvents, names: tuple[str, ...], calls: Int64, tasks: Int64) -> None:
        """Add launches and the order of streams.

        Args:
            names: those of the host events.
            calls, tasks: tasks of the host events and of the intervals.
        """
        launched = np.flatnonzero(self.launched_by >= 0)
        call = calls[self.launched_by[launched]]
        edges.add(call, tasks[launched], self.latency_ns[launched], EdgeKind.LAUNCH, from_end=False)
        queued = np.flatnonzero(self.previous >= 0)
        before = self.previous[queued]
        graphs = np.fromiter(("GraphLaunch" in name for name in names), np.bool_, len(names))
        own = self.launched_by[queued]
        # What orders these, the file does not say: they keep their recorded gaps.
        opaque = (own < 0) | ((own == self.launched_by[before]) & graphs[host.name[own]])
        gaps = np.where(opaque, self.start_ns[queued] - self.end_ns[before], self.gap_ns)
        edges.add(tasks[before], tasks[queued], gaps, EdgeKind.STREAM)


def device_order(events: RankEvents, host: HostEvents, communication: NDArray[np.bool_]) -> DeviceOrder:
    """Order the device intervals of a process, and measure its lags."""
    start, end = events.start_ns, events.end_ns
    streams = events.device.astype(np.int64) * (1 << 32) + events.stream
    known = unique(streams)
    lane = np.searchsorted(known, streams)
    previous = previous_in_group(lane)
    # gloo's messages run side by side on what is one thread in the trace.
    previous[(previous >= 0) & (end[previous] > start + _OVERLAP_NS)] = -1
    launched_by = host.of_call[events.launch]
    call = np.where(launched_by >= 0, host.start_ns[launched_by] if len(host) else 0, 0)
    ended = np.where(previous >= 0, end[previous] if len(end) else 0, np.iinfo(np.int64).min)
    # A collective's kernel waits for what computes its input; gloo's threads start once it is there.
    idle = (~communication | events.on_cpu) & (launched_by >= 0) & (ended < call)
    behind = ~communication & (previous >= 0) & ((launched_by < 0) | (call + _CERTAINLY_QUEUED_NS < ended))
    api = np.where(launched_by >= 0, host.name[launched_by] if len(host) else 0, -1)
    return DeviceOrder(
        start_ns=start,
        end_ns=end,
        lane=lane,
        lanes=len(known),
        communication=communication,
        launched_by=launched_by,
        previous=previous,
        latency_ns=_latency(api, start - call, idle),
        gap_ns=mean_up_to((start - ended)[behind], _LONGEST_GAP_NS, US),
    )


def _latency(api: NDArray[np.int64], late: Int64, idle: NDArray[np.bool_]) -> Int64:
    """Return the latency of each interval: the median of its API's, or of all where few were measured."""
    overall = int(median(late[idle])) if idle.any() else _DEFAULT_LATENCY_NS
    latency = np.full(len(api), overall, np.int64)
    for name in unique(api[idle]).tolist():
        samples = late[idle & (api == name)]
        if len(samples) >= _FEWEST_SAMPLES:
            latency[api == name] = int(median(samples))
    return latency


def mean_up_to(values: Int64, most: int, default: int) -> int:
    """Return the mean of the values from 0 to *most*, so that waits do not count as gaps; *default* without any."""
    few = values[(values >= 0) & (values <= most)]
    return int(few.mean()) if len(few) else default
