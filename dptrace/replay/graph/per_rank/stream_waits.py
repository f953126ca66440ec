"""Which streams wait for others.

Without synchronization events, ``cudaStreamWaitEvent`` is a bare call, without stream or event. Its place shows what
it means: within ``nccl:*`` it is NCCL's own. In the ``c10d::`` operator that launches a collective, the collective
waits for the stream that its thread computes on. Elsewhere, the next kernel that the thread launches waits for a
collective, or for another stream.
"""

from __future__ import annotations

import msgspec
import numpy as np

from dptrace.core.intervals import Int64, mask_of, unique
from dptrace.replay.graph.model import EdgeKind, Edges
from dptrace.replay.graph.per_rank.device_order import US, DeviceOrder
from dptrace.replay.graph.per_rank.events import WAIT_CALL, RankEvents
from dptrace.replay.graph.per_rank.host_events import HostEvents
from dptrace.replay.graph.per_rank.recorded_waits import recorded_waits

__all__ = ["StreamWaits", "add_stream_waits"]

_AFTER_NS = 2 * US
"""From the end of what a stream waits for to the start of what waited."""
_CONTRADICTS_NS = 5 * US
"""What ended this much after a task started was not waited for."""
_JUST_BEFORE_NS = 20 * US
_SIDE_BEFORE_NS = 15 * US
_MOST_PENDING = 256
"""Collectives that may still be waited for; the oldest are forgotten."""


class StreamWaits(msgspec.Struct, frozen=True):
    """How many waits were found, and how."""

    recorded: int
    """Waits of which the trace says which stream waits for what."""
    joins: int
    """Kernels that wait for a collective."""
    joins_by_time: int
    """Those whose collective was chosen because it ended just before."""


def add_stream_waits(
    edges: Edges, events: RankEvents, host: HostEvents, device: DeviceOrder, names: tuple[str, ...], tasks: Int64
) -> StreamWaits:
    """Add the waits between streams; *tasks* are the numbers of the intervals' tasks."""
    if events.on_cpu:
        return StreamWaits(0, 0, 0)
    collective = np.flatnonzero(device.communication & (device.launched_by >= 0))
    collective = collective[np.argsort(device.launched_by[collective], kind="stable")]
    source, target, recorded = recorded_waits(events, host, device)
    edges.add(tasks[source], tasks[target], _AFTER_NS, EdgeKind.JOIN)
    producer = np.where(np.isin(collective, target), -1, _producers(host, device, collective))
    made = producer >= 0
    edges.add(tasks[producer[made]], tasks[collective[made]], _AFTER_NS, EdgeKind.PRODUCE)
    waits = np.setdiff1d(_wait_calls(events, host, device, names, collective), recorded)
    joining, count = _joining(host, device, waits)
    found = _joined(device, collective, joining, count)
    side = _side_streams(device, joining)
    for source, target in (found[:2], side):
        lag = np.clip(device.start_ns[target] - device.end_ns[source], 0, _AFTER_NS)
        edges.add(tasks[source], tasks[target], lag, EdgeKind.JOIN)
    return StreamWaits(len(source), len(found[0]), found[2])


def _wait_calls(
    events: RankEvents, host: HostEvents, device: DeviceOrder, names: tuple[str, ...], collective: Int64
) -> Int64:
    """Return the host events that let a stream wait for another, apart from those that launching a collective needs."""
    is_wait = np.fromiter((bool(WAIT_CALL.match(name)) for name in names), np.bool_, len(names))
    chosen = is_wait[events.call_name] & ~events.call_in_nccl
    request = events.call_request
    launching = unique(request[events.launch[collective]])
    chosen &= ~np.isin(request, launching[launching >= 0])
    return np.sort(host.of_call[:-1][chosen])


def _producers(host: HostEvents, device: DeviceOrder, collective: Int64) -> Int64:
    """Return for each collective the last interval on the stream that its thread computes on, or -1.

    The thread's current stream is the one that it launched on last. If what was launched there last ended after the
    collective started, it is not the input, and the stream before that counts.
    """
    if not len(collective):
        return collective
    computing = np.flatnonzero(~device.communication & (device.launched_by >= 0))
    computing = computing[np.argsort(device.launched_by[computing], kind="stable")]
    launch, thread = device.launched_by[computing], host.thread[device.launched_by[computing]]
    best, latest = np.full(len(collective), -1, np.int64), np.full(len(collective), -1, np.int64)
    at = device.launched_by[collective]
    for lane in unique(device.lane[computing]).tolist():
        on_lane = device.lane[computing] == lane
        last = _last_before(launch[on_lane], at)
        interval = np.where(last >= 0, computing[on_lane][last], -1)
        used = np.full(len(collective), -1, np.int64)
        for own in unique(thread[on_lane]).tolist():
            mine = launch[on_lane & (thread == own)]
            place = _last_before(mine, at)
            same = (host.thread[at] == own) & (place >= 0)
            # A stream that the thread itself launched on counts before any other.
            used[same] = mine[place[same]] + len(host)
        used = np.where(used >= 0, used, np.where(last >= 0, launch[on_lane][last], -1))
        possible = (interval >= 0) & (device.end_ns[interval] <= device.start_ns[collective] + _CONTRADICTS_NS)
        better = possible & (used > latest)
        best, latest = np.where(better, interval, best), np.where(better, used, latest)
    return best


def _last_before(ascending: Int64, at: Int64) -> Int64:
    return np.searchsorted(ascending, at) - 1


def _joining(host: HostEvents, device: DeviceOrder, waits: Int64) -> tuple[Int64, Int64]:
    """Return the intervals that a call to wait affects, in the order of their launches, and the calls of each."""
    if not len(waits):
        return waits, waits
    by_launch = np.flatnonzero(device.launched_by >= 0)
    by_launch = by_launch[np.argsort(device.launched_by[by_launch], kind="stable")]
    by_launch = by_launch[~device.communication[by_launch]]
    launch = device.launched_by[by_launch]
    thread = host.thread[launch]
    after = [np.empty(0, np.int64)]
    for own in unique(host.thread[waits]).tolist():
        mine = by_launch[thread == own]
        place = np.searchsorted(launch[thread == own], waits[host.thread[waits] == own])
        after.append(mine[place[place < len(mine)]])
    interval, count = np.unique(np.concatenate(after), return_counts=True)
    order = np.argsort(device.launched_by[interval], kind="stable")
    return interval[order], count[order]


def _joined(device: DeviceOrder, collective: Int64, joining: Int64, count: Int64) -> tuple[Int64, Int64, int]:
    """Return the collectives that are waited for, what waits for each, and how many were chosen by time.

    Of the collectives launched before and not waited for yet, it is the one that ended just before the start, or else
    the oldest; never one that ended after it.
    """
    sources, targets, by_time = list[int](), list[int](), 0
    pending, launched, i = list[int](), device.launched_by[collective], 0
    starts, ends = device.start_ns.tolist(), device.end_ns.tolist()
    until = np.searchsorted(launched, device.launched_by[joining]).tolist()
    numbers = collective.tolist()
    # A loop over waits, not events: each depends on which the earlier ones took.
    for target, calls, known in zip(joining.tolist(), count.tolist(), until, strict=True):
        pending += numbers[i:known]
        i = known
        del pending[:-_MOST_PENDING]
        start = starts[target]
        possible = [one for one in pending if ends[one] <= start + _CONTRADICTS_NS]
        near = [one for one in possible if ends[one] >= start - _JUST_BEFORE_NS]
        taken = near[-1:] or possible[:calls]
        by_time += len(near[-1:])
        sources += taken
        targets += [target] * len(taken)
        for one in taken:
            pending.remove(one)
    return np.array(sources, np.int64), np.array(targets, np.int64), by_time


def _side_streams(device: DeviceOrder, joining: Int64) -> tuple[Int64, Int64]:
    """Return what else ended just before each interval that waits, on another stream that computes, and the latter."""
    table = device.last_launched(device.launched_by[joining])
    rows, lanes = np.nonzero(table >= 0)
    source, target = table[rows, lanes], joining[rows]
    communicating = mask_of(unique(device.lane[device.communication]), device.lanes)
    late = device.start_ns[target] - device.end_ns[source]
    side = ~communicating[lanes] & (device.lane[target] != lanes) & (late <= _SIDE_BEFORE_NS) & (late >= -_AFTER_NS)
    return source[side], target[side]
