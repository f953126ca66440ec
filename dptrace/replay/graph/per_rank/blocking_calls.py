"""Which host calls waited for the device, and for what: synchronizations, copies, frees, and a full launch queue."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.replay.graph.model import EdgeKind
from dptrace.replay.graph.per_rank.device_order import US, DeviceOrder, mean_up_to
from dptrace.replay.graph.per_rank.events import RankEvents
from dptrace.replay.graph.per_rank.host_events import HostEvents, previous_in_group
from dptrace.replay.graph.per_rank.recorded_waits import synchronized_lanes

__all__ = ["BlockingCalls", "blocking_calls"]

_SYNCHRONIZE = re.compile(r"(cuda|hip)(Stream|Device|Event)Synchronize$")
_DEVICE = re.compile(r"(cuda|hip)DeviceSynchronize$")
_STREAM = re.compile(r"(cuda|hip)StreamSynchronize$")
_FREE = re.compile(r"(cuda|hip)Free$")
_COPY = re.compile(r"mem_?cpy|copy", re.IGNORECASE)
_ON_DEVICE = re.compile(r"DtoD|DeviceToDevice")
_ROUNDING_NS = 2 * US
_FREE_RETURNS_NS = 5 * US
_MOST_RESUME_NS, _DEFAULT_RESUME_NS, _LEAST_WORK_NS = 60 * US, 5 * US, 3 * US
_SLOW_FACTOR, _SLOW_NS, _FEWEST_IN_FLIGHT = 10, 50 * US, 512
"""A launch that takes this much longer than usual while this many are in flight waited for room in the queue."""


class BlockingCalls(msgspec.Struct, frozen=True):
    """The calls that wait for the device; one entry per call in each column."""

    event: Int64
    """Index of the host event, ascending."""
    target: Int64
    """The device interval that it waits for."""
    own_ns: Int64
    """What the call takes apart from the wait."""
    resume_ns: Int64
    """From what it waits for to its return."""
    queue: NDArray[np.bool_]
    """Whether it returns when the target starts, since then the queue has room; else when it ends."""

    def __len__(self) -> int:
        return len(self.event)

    @property
    def edge_kind(self) -> NDArray[np.uint8]:
        """The :class:`EdgeKind` of each wait."""
        return np.where(self.queue, EdgeKind.QUEUE, EdgeKind.SYNCHRONIZE).astype(np.uint8)


def _named(host: HostEvents, names: tuple[str, ...], test: Callable[[str], object]) -> NDArray[np.bool_]:
    """Return which host events have a name that passes a test."""
    passes = np.fromiter((bool(test(name)) for name in names), np.bool_, len(names))
    chosen: NDArray[np.bool_] = passes[host.name]
    return chosen


def blocking_calls(events: RankEvents, host: HostEvents, device: DeviceOrder, names: tuple[str, ...]) -> BlockingCalls:
    """Find the blocking calls of a process; *names* are those of its host events."""
    if not len(device) or events.on_cpu:
        none = np.empty(0, np.int64)
        return BlockingCalls(none, none, none, none, none.astype(np.bool_))
    last = _last_of_event(host, device)
    target = np.full(len(host), -1, np.int64)
    queue = np.zeros(len(host), np.bool_)
    for event, waits_for in (
        _synchronizing(host, device, names, last, synchronized_lanes(events, host, device)),
        _copying(events, host, device, last),
        _freeing(host, device, names),
    ):
        target[event] = waits_for
    event, waits_for = _queueing(host, device, names, last)
    queue[event] = (target[event] < 0) & (waits_for >= 0)
    target[event] = np.where(queue[event], waits_for, target[event])
    blocked = np.flatnonzero(target >= 0)
    return _timed(host, device, blocked, target[blocked], _named(host, names, _FREE.match)[blocked], queue[blocked])


def _last_of_event(host: HostEvents, device: DeviceOrder) -> Int64:
    """Return the last interval that each host event launched, or -1."""
    last = np.full(len(host) + 1, -1, np.int64)
    last[device.launched_by] = np.arange(len(device))
    return last[:-1]


def _memory(events: RankEvents, interval: Int64) -> NDArray[np.bool_]:
    memory: NDArray[np.bool_] = events.memory[interval] & (interval >= 0)
    return memory


def _latest(device: DeviceOrder, table: Int64, until: Int64 | None = None) -> Int64:
    """Return of each row's intervals the one that ended last, not after *until*; -1 where there is none."""
    if not table.size:
        return np.full(len(table), -1, np.int64)
    never = np.iinfo(np.int64).min
    end = np.where(table >= 0, device.end_ns[table], never)
    if until is not None:
        end = np.where(end <= until[:, None], end, never)
    best = end.argmax(axis=1)
    rows = np.arange(len(table))
    return np.where(end[rows, best] > never, table[rows, best], -1)


def _synchronizing(
    host: HostEvents, device: DeviceOrder, names: tuple[str, ...], last: Int64, recorded_lane: Int64
) -> tuple[Int64, Int64]:
    """A device is waited for whole; a stream as recorded, or a copy's just after it; else ends decide.

    Args:
        last: the last interval that each host event launched, or -1.
        recorded_lane: the lane that each host event waits for, as recorded, or -1.
    """
    event = np.flatnonzero(_named(host, names, _SYNCHRONIZE.match))
    table = device.last_launched(event)
    by_end = _latest(device, table, host.end_ns[event] + _ROUNDING_NS)
    whole = _named(host, names, _DEVICE.match)[event]
    before = previous_in_group(host.thread)[event]
    copies = _named(host, names, re.compile(r"\w*Memcpy").match)
    copied = np.where((before >= 0) & copies[before], last[before], -1)
    copied = np.where(_named(host, names, _STREAM.match)[event], copied, -1)
    lane = np.where(recorded_lane[event] >= 0, recorded_lane[event], np.where(copied >= 0, device.lane[copied], -1))
    on_stream = table[np.arange(len(event)), lane] if table.size else by_end
    return event, np.where(whole, _latest(device, table), np.where(lane >= 0, on_stream, by_end))


def _freeing(host: HostEvents, device: DeviceOrder, names: tuple[str, ...]) -> tuple[Int64, Int64]:
    """``cudaFree`` waits for all that was launched."""
    event = np.flatnonzero(_named(host, names, _FREE.match))
    target = _latest(device, device.last_launched(event))
    end = device.end_ns[target]
    waited = (target >= 0) & (end > host.start_ns[event]) & (end <= host.end_ns[event] + _FREE_RETURNS_NS)
    return event, np.where(waited, target, -1)


def _queueing(host: HostEvents, device: DeviceOrder, names: tuple[str, ...], last: Int64) -> tuple[Int64, Int64]:
    """A launch into a full queue returns as an older kernel starts."""
    length = host.end_ns - host.start_ns
    usual = _tenth_percentile(host.name, length, len(names))[host.name]
    event = np.flatnonzero((last >= 0) & (length > _SLOW_FACTOR * usual + _SLOW_NS))
    launched = np.sort(device.launched_by[device.launched_by >= 0])
    ended = np.sort(device.end_ns[device.launched_by >= 0])
    in_flight = np.searchsorted(launched, event) - np.searchsorted(ended, host.start_ns[event], side="right")
    event = event[in_flight >= _FEWEST_IN_FLIGHT]
    target = np.searchsorted(device.start_ns, host.end_ns[event] + _FREE_RETURNS_NS, side="right") - 1
    waited = (device.start_ns[target] > host.start_ns[event]) & (device.launched_by[target] < event)
    return event, np.where((target >= 0) & waited & (device.launched_by[target] >= 0), target, -1)


def _copying(events: RankEvents, host: HostEvents, device: DeviceOrder, last: Int64) -> tuple[Int64, Int64]:
    """A copy between host and device whose call returns only after it is done is a blocking one."""
    is_copy = np.fromiter(
        (bool(_COPY.search(name)) and not _ON_DEVICE.search(name) for name in events.names), np.bool_, len(events.names)
    )
    event = np.flatnonzero(_memory(events, last) & (host.end_ns > host.start_ns))
    copy = last[event]
    waited = is_copy[events.name[copy]] & (host.end_ns[event] >= device.end_ns[copy])
    return event, np.where(waited, copy, -1)


def _tenth_percentile(group: NDArray[np.int32], values: Int64, groups: int) -> Int64:
    """Return the tenth percentile of the values of each group."""
    order = np.lexsort((values, group))
    first = np.searchsorted(group[order], np.arange(groups + 1))
    place = first[:-1] + (np.diff(first) - 1) // 10
    low: Int64 = values[order[np.minimum(place, len(values) - 1)]]
    return low


def _timed(
    host: HostEvents,
    device: DeviceOrder,
    event: Int64,
    target: Int64,
    freeing: NDArray[np.bool_],
    queue: NDArray[np.bool_],
) -> BlockingCalls:
    """Divide each call's time into its own, the wait, and its return; the last is the mean of its class."""
    length = host.end_ns - host.start_ns
    done = np.where(queue, device.start_ns[target], device.end_ns[target])
    late = host.end_ns[event] - done
    waited = done > host.start_ns[event]
    # What a call of its name takes where it need not wait.
    free_length = length.copy()
    free_length[event[waited]] = np.iinfo(np.int64).max
    usual = _tenth_percentile(host.name, free_length, int(host.name.max(initial=0)) + 1)[host.name[event]]
    usual = np.where(usual < np.iinfo(np.int64).max, usual, _DEFAULT_RESUME_NS)
    length = length[event]
    own = np.where(waited, np.minimum(length, usual), length)
    resume = np.where(waited, late, np.minimum(late, _LEAST_WORK_NS))
    for same in (queue, ~queue & ~freeing):
        chosen = same & waited
        resume[chosen] = mean_up_to(late[chosen], _MOST_RESUME_NS, _DEFAULT_RESUME_NS)
    # cudaFree is slow by itself: only the wait before it is replaced.
    return BlockingCalls(event, target, np.where(freeing & waited, 0, own), resume, queue)
