"""Waits of which the trace says what waits for what: between streams, and of the host for a stream."""

from __future__ import annotations

import numpy as np

from dptrace.core.intervals import EMPTY, Int64
from dptrace.replay.graph.per_rank.device_order import US, DeviceOrder
from dptrace.replay.graph.per_rank.events import RankEvents
from dptrace.replay.graph.per_rank.host_events import HostEvents
from dptrace.replay.graph.per_rank.sync_events import NOT_RECORDED

__all__ = ["recorded_waits", "synchronized_lanes"]

_CONTRADICTS_NS = 5 * US
"""What ended this much after a task started was not waited for."""


def recorded_waits(events: RankEvents, host: HostEvents, device: DeviceOrder) -> tuple[Int64, Int64, Int64]:
    """Return what recorded waits between streams wait for, what waits, and the host events of their calls.

    A stream waits for what was launched on another one before an event was recorded there; what is launched next on
    the stream waits::

        stream 7   ├ a ─────┤                    record (7) · wait (20 for 7) · launch c on 20: c waits for a
        stream 20             ├ c ┤
    """
    syncs = events.syncs
    if not len(syncs):
        return EMPTY[0], EMPTY[0], EMPTY[0]
    call, record = _event_of(events, host, syncs.correlation), _event_of(events, host, syncs.record)
    waiting, ended = _lane_of(events, device, syncs.stream), _lane_of(events, device, syncs.wait_on_stream)
    chosen = np.flatnonzero((call >= 0) & (waiting >= 0) & (ended >= 0))
    call, at, rows = call[chosen], np.where(record >= 0, record, call)[chosen], np.arange(len(chosen))
    source = device.last_launched(at)[rows, ended[chosen]]
    target = device.next_launched(call)[rows, waiting[chosen]]
    found = (source >= 0) & (target >= 0)
    found &= device.end_ns[source] <= device.start_ns[target] + _CONTRADICTS_NS
    return source[found], target[found], call


def synchronized_lanes(events: RankEvents, host: HostEvents, device: DeviceOrder) -> Int64:
    """Return for each host event the lane that it waits for as recorded, or -1."""
    lanes = np.full(len(host), -1, np.int64)
    syncs = events.syncs
    if len(syncs):
        call = _event_of(events, host, syncs.correlation)
        known = (call >= 0) & (syncs.wait_on_stream == NOT_RECORDED)
        lanes[call[known]] = _lane_of(events, device, syncs.stream)[known]
    return lanes


def _event_of(events: RankEvents, host: HostEvents, correlation: Int64) -> Int64:
    """Return the host event of the call with each id, or -1."""
    by_id = np.argsort(events.call_correlation, kind="stable")
    ids = events.call_correlation[by_id]
    if not len(ids):
        return np.full(len(correlation), -1, np.int64)
    place = np.minimum(np.searchsorted(ids, correlation), len(ids) - 1)
    return np.where((correlation > 0) & (ids[place] == correlation), host.of_call[by_id[place]], -1)


def _lane_of(events: RankEvents, device: DeviceOrder, stream: Int64) -> Int64:
    """Return the lane of each synchronization's device and *stream*, or -1."""
    _, first = np.unique(device.lane, return_index=True)
    own = zip(events.device[first].tolist(), events.stream[first].tolist(), strict=True)
    lanes = {key: lane for lane, key in enumerate(own)}
    wanted = zip(np.maximum(events.syncs.device, 0).tolist(), stream.tolist(), strict=True)
    return np.array([lanes.get(key, -1) for key in wanted], np.int64)
