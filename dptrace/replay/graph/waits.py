"""Who waits for whom on one rank: streams, recorded waits, blocking calls, and the order on the device."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.columns import Columns
from dptrace.core.intervals import EMPTY, Int64, mask_of, median, unique
from dptrace.readers.communication import GLOO_MESSAGES
from dptrace.replay.graph.events import NOT_RECORDED, HostEvents, RankEvents, previous_in_group
from dptrace.replay.graph.model import EdgeKind, Edges
from dptrace.timeline.launch_calls import LAUNCH_NS, WAIT_CALL


@lru_cache(1 << 10)
def passing(test: Callable[[str], object], names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Return which names pass a test: ranks have the same names, as a rule in the same order."""
    passes = np.fromiter((_passes(test, name) for name in names), np.bool_, len(names))
    passes.setflags(write=False)
    return passes


@lru_cache(1 << 16)
def _passes(test: Callable[[str], object], name: str) -> bool:
    return bool(test(name))


# The device side of one process: what follows what on a stream, what launched it, and the lags of both.

_GRAPH_LAUNCH = re.compile("GraphLaunch")
_MESSAGE = re.compile("|".join(map(re.escape, GLOO_MESSAGES)))

US = 1000
_DEFAULT_LATENCY_NS = 8 * US
"""Launch latency of a process whose device is always busy, so that none can be measured."""
_CERTAINLY_QUEUED_NS = 50 * US
"""A kernel launched this long before its predecessor ended was waiting in the queue."""
_LONGEST_GAP_NS = 10 * US
"""Longest gap between queued kernels of a stream that counts for their mean."""
_OVERLAP_NS = 50 * US
"""Neighbors that overlap by more than this are not one after the other."""
_MIN_SAMPLES = 8
"""Launches of an API from which its latency is its own median."""


class DeviceOrder(Columns, frozen=True):
    """The device intervals of one process, sorted by start; one entry per interval in each column."""

    start_ns: Int64
    end_ns: Int64
    lane: NDArray[np.int64]
    """Number of its device and stream, from 0."""
    lanes: int
    communication: NDArray[np.bool_]
    message: NDArray[np.bool_]
    """Whether it is a message of gloo's, which ends when the host has waited for it."""
    launched_by: Int64
    """Index of the host event that launched it, or -1."""
    previous: Int64
    """The interval before it on its stream, or -1."""
    latency_ns: Int64
    """From the start of the launching call to the start of an interval whose stream is idle: the median of its API."""
    after_ns: Int64
    """From the return of the launching call to the start of an interval that began only then, on a free stream, since
    the call took longer than launches do; else -1."""
    gap_ns: int
    """Between neighbors that wait in a stream's queue."""

    def last_launched(self, before: Int64) -> Int64:
        """Return for each host event and each lane the last interval launched before it, or -1: events × lanes."""
        return self._launched(before, "left", -1)

    def next_launched(self, after: Int64) -> Int64:
        """Return for each host event and each lane the first interval launched after it, or -1: events × lanes."""
        return self._launched(after, "right", 0)

    def _launched(self, event: Int64, side: Literal["left", "right"], beside: int) -> Int64:
        table = np.full((len(event), self.lanes), -1, np.int64)
        for lane in range(self.lanes):
            own = np.flatnonzero((self.lane == lane) & (self.launched_by >= 0))
            own = own[np.argsort(self.launched_by[own], kind="stable")]
            # The extra last entry, also index -1, means no interval.
            table[:, lane] = np.append(own, -1)[np.searchsorted(self.launched_by[own], event, side=side) + beside]
        return table

    def add_edges(self, edges: Edges, host: HostEvents, names: tuple[str, ...], calls: Int64, tasks: Int64) -> None:
        """Add launches and the order of streams.

        Args:
            names: those of the host events.
            calls, tasks: tasks of the host events and of the intervals.
        """
        launched = np.flatnonzero(self.launched_by >= 0)
        call, after = calls[self.launched_by[launched]], self.after_ns[launched]
        lag = np.where(after >= 0, after, self.latency_ns[launched])
        edges.add(call, tasks[launched], lag, EdgeKind.LAUNCH, from_end=after >= 0)
        queued = np.flatnonzero(self.previous >= 0)
        before = self.previous[queued]
        graphs = passing(_GRAPH_LAUNCH.search, names)
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
    returned = np.where(launched_by >= 0, host.end_ns[launched_by] if len(host) else 0, 0)
    # What another stream's work ended just before its start was held by that, however long its launch was ago.
    ends = np.sort(end)
    held_until = ends[np.searchsorted(ends, start, side="right") - 1] if len(ends) else ends
    held = (start - call > _CERTAINLY_QUEUED_NS) & (held_until > call) & (start - held_until <= _SIDE_BEFORE_NS)
    slow = (returned - np.maximum(call, ended) > LAUNCH_NS) & (start >= returned - LAUNCH_NS) & (not events.on_cpu)
    latency = _latency(api, start - call, idle & ~slow, held)
    if events.on_cpu:
        # A thread of gloo's has to get a core: how long that takes is of this launch, not of all.
        latency = np.where(idle & ~held, start - call, latency)
    return DeviceOrder(
        start_ns=start,
        end_ns=end,
        lane=lane,
        lanes=len(known),
        communication=communication,
        message=passing(_MESSAGE.match, events.names)[events.name],
        launched_by=launched_by,
        previous=previous,
        latency_ns=latency,
        after_ns=np.where(slow, np.clip(start - returned, 0, latency), -1),
        gap_ns=mean_up_to((start - ended)[behind], _LONGEST_GAP_NS, US),
    )


def _latency(api: NDArray[np.int64], late: Int64, idle: NDArray[np.bool_], held: NDArray[np.bool_]) -> Int64:
    """Return the latency of each interval: the median of its API's, or of all where too few were measured or free."""
    free = idle & ~held
    overall = int(median(late[free])) if free.any() else _DEFAULT_LATENCY_NS
    latency = np.full(len(api), overall, np.int64)
    for name in unique(api[free]).tolist():
        measured = np.count_nonzero(idle & (api == name))
        samples = late[free & (api == name)]
        if measured >= _MIN_SAMPLES and 2 * len(samples) >= measured:
            latency[api == name] = int(median(samples))
    return latency


def mean_up_to(values: Int64, most: int, default: int) -> int:
    """Return the mean of the values from 0 to *most*, so that waits do not count as gaps; *default* without any."""
    few = values[(values >= 0) & (values <= most)]
    return int(few.mean()) if len(few) else default


# Waits of which the trace says what waits for what: between streams, and of the host for a stream.

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


# Which streams wait for others.
#
# Without synchronization events, ``cudaStreamWaitEvent`` is a bare call, without stream or event. Its place shows what
# it means: within ``nccl:*`` it is NCCL's own. In the ``c10d::`` operator that launches a collective, the collective
# waits for the stream that its thread computes on. Elsewhere, the next kernel that the thread launches waits for a
# collective, or for another stream.

_AFTER_NS = 2 * US
"""From the end of what a stream waits for to the start of what waited."""
_JUST_BEFORE_NS = 20 * US
"""How long before a start what it may wait for ends, at most."""
_SIDE_BEFORE_NS = 15 * US
"""The same, on another stream."""
_MAX_PENDING = 256
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
    waits = unique(_wait_calls(events, host, device, names, collective))
    waits = waits[~np.append(mask_of(recorded, len(host)), False)[waits]]
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
    is_wait = passing(WAIT_CALL.match, names)
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
        del pending[:-_MAX_PENDING]
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


# Which host calls waited for the device, and for what: synchronizations, copies, frees, and a full launch queue.

_SYNCHRONIZE = re.compile(r"(cuda|hip)(Stream|Device|Event)Synchronize$")
_DEVICE = re.compile(r"(cuda|hip)DeviceSynchronize$")
_STREAM = re.compile(r"(cuda|hip)StreamSynchronize$")
_FREE = re.compile(r"(cuda|hip)Free$")
_COPY = re.compile(r"mem_?cpy|copy", re.IGNORECASE)
_ON_DEVICE = re.compile(r"DtoD|DeviceToDevice")
_ROUNDING_NS = 2 * US
"""How much later than a call returns what it waits for may end, as recorded."""
_FREE_RETURNS_NS = 5 * US
"""The same of a call that frees memory."""
_MAX_RESUME_NS, _DEFAULT_RESUME_NS, _MIN_WORK_NS = 60 * US, 5 * US, 3 * US
"""How long a call returns after its wait: at most, and where none is measured; at most without a wait."""
_SLOW_FACTOR, _SLOW_NS, _MIN_IN_FLIGHT = 10, 50 * US, 512
"""A launch that takes this much longer than usual while this many are in flight waited for room in the queue."""


class BlockingCalls(Columns, frozen=True):
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

    @property
    def edge_kind(self) -> NDArray[np.uint8]:
        """The :class:`EdgeKind` of each wait."""
        return np.where(self.queue, EdgeKind.QUEUE, EdgeKind.SYNCHRONIZE).astype(np.uint8)


def _named(host: HostEvents, names: tuple[str, ...], test: Callable[[str], object]) -> NDArray[np.bool_]:
    """Return which host events have a name that passes a test."""
    return passing(test, names)[host.name]


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
    event, waits_for = _queueing(host, device, last)
    queue[event] = (target[event] < 0) & (waits_for >= 0)
    target[event] = np.where(queue[event], waits_for, target[event])
    blocked = np.flatnonzero(target >= 0)
    return _timed(host, device, blocked, target[blocked], _named(host, names, _FREE.match)[blocked], queue[blocked])


def _last_of_event(host: HostEvents, device: DeviceOrder) -> Int64:
    """Return the last interval that each host event launched, or -1."""
    last = np.full(len(host) + 1, -1, np.int64)
    last[device.launched_by] = np.arange(len(device))
    return last[:-1]


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


def _queueing(host: HostEvents, device: DeviceOrder, last: Int64) -> tuple[Int64, Int64]:
    """A launch into a full queue returns as an older kernel starts."""
    length = host.end_ns - host.start_ns
    event = np.flatnonzero((last >= 0) & (length > _SLOW_NS))
    event = event[length[event] > _SLOW_FACTOR * _tenth_percentile(host, length, event) + _SLOW_NS]
    launched = np.sort(device.launched_by[device.launched_by >= 0])
    ended = np.sort(device.end_ns[device.launched_by >= 0])
    in_flight = np.searchsorted(launched, event) - np.searchsorted(ended, host.start_ns[event], side="right")
    event = event[in_flight >= _MIN_IN_FLIGHT]
    target = np.searchsorted(device.start_ns, host.end_ns[event] + _FREE_RETURNS_NS, side="right") - 1
    waited = (device.start_ns[target] > host.start_ns[event]) & (device.launched_by[target] < event)
    return event, np.where((target >= 0) & waited & (device.launched_by[target] >= 0), target, -1)


def _copying(events: RankEvents, host: HostEvents, device: DeviceOrder, last: Int64) -> tuple[Int64, Int64]:
    """A copy between host and device whose call returns only after it is done is a blocking one."""
    names = events.names
    is_copy = passing(_COPY.search, names) & ~passing(_ON_DEVICE.search, names)
    event = np.flatnonzero(events.memory[last] & (last >= 0) & (host.end_ns > host.start_ns))
    copy = last[event]
    waited = is_copy[events.name[copy]] & (host.end_ns[event] >= device.end_ns[copy])
    return event, np.where(waited, copy, -1)


def _tenth_percentile(host: HostEvents, values: Int64, event: Int64) -> Int64:
    """Return for some host events the tenth percentile of the values of all that have their name."""
    own = np.flatnonzero(mask_of(host.name[event], int(host.name.max(initial=0)) + 1)[host.name])
    own = own[np.lexsort((values[own], host.name[own]))]
    first, end = (np.searchsorted(host.name[own], host.name[event], side) for side in ("left", "right"))
    return values[own[first + (end - first - 1) // 10]]


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
    usual = _tenth_percentile(host, free_length, event)
    usual = np.where(usual < np.iinfo(np.int64).max, usual, _DEFAULT_RESUME_NS)
    length = length[event]
    own = np.where(waited, np.minimum(length, usual), length)
    resume = np.where(waited, late, np.minimum(late, _MIN_WORK_NS))
    for same in (queue, ~queue & ~freeing):
        chosen = same & waited
        resume[chosen] = mean_up_to(late[chosen], _MAX_RESUME_NS, _DEFAULT_RESUME_NS)
    # cudaFree is slow by itself: only the wait before it is replaced.
    return BlockingCalls(event, target, np.where(freeing & waited, 0, own), resume, queue)
