"""The tasks of one process and the edges between them: everything that needs no other rank."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import EMPTY, Int64, covered, union, unique
from dptrace.errors import DptraceError
from dptrace.readers.communication import GLOO_MESSAGES
from dptrace.replay.graph.events import HostEvents, Operators, RankEvents, host_events
from dptrace.replay.graph.model import Edge, EdgeKind, Edges, TaskKind
from dptrace.replay.graph.waits import (
    US,
    BlockingCalls,
    DeviceOrder,
    StreamWaits,
    add_stream_waits,
    blocking_calls,
    device_order,
    passing,
)
from dptrace.timeline.host_events import NEEDS_EVENTS, Pauses, Work, awaited
from dptrace.timeline.model import BETWEEN, UNKNOWN, Kind, Timeline

# The order of host events: on each thread, from thread to thread, and after waits that are not recorded.


END = "end of the last step"
"""Name of the mark after the last step, before which a host may pause."""
_HAND_OVER_NS = 100 * US
"""A longer pause, in which another thread finished a call, is a wait for that thread."""
_RESUME_NS = 20 * US
"""What a thread takes at least after a call and a wait that is not recorded."""


class HostTasks(msgspec.Struct, frozen=True):
    """Numbers of the tasks of each host event; the two differ for a blocking call."""

    begin: Int64
    finish: Int64


def add_host_order(
    edges: Edges,
    host: HostEvents,
    device: DeviceOrder,
    tasks: HostTasks,
    interval_tasks: Int64,
    names: tuple[str, ...],
) -> int:
    """Add the edges between host events, and those from device intervals that hidden waits end with.

    Args:
        names: those of the host events.

    Returns:
        The number of hidden waits.
    """
    start, end = host.start_ns, host.end_ns
    before, nested = _predecessors(host)
    pause = np.where(before >= 0, start - end[before], np.iinfo(np.int64).max)
    pause[nested] = 0
    on_cpu = bool((host.kind == TaskKind.COMPUTE).any())
    hidden = _hidden_waits(host, device, before, pause, names, on_cpu=on_cpu)
    waits = hidden >= 0
    other = _handed_over(host, before, np.flatnonzero((pause > _HAND_OVER_NS) & ~waits))
    handed = other >= 0
    plain = (before >= 0) & ~waits & ~handed & ~nested

    event = np.flatnonzero(plain)
    edges.add(tasks.finish[before[event]], tasks.begin[event], np.maximum(pause[event], 0), EdgeKind.HOST)
    event = np.flatnonzero(nested)
    since = start[event] - start[before[event]]
    edges.add(tasks.begin[before[event]], tasks.begin[event], since, EdgeKind.HOST, from_end=False)
    event = np.flatnonzero(handed)
    edges.add(tasks.finish[other[event]], tasks.begin[event], start[event] - end[other[event]], EdgeKind.THREAD)
    event = np.flatnonzero(waits)
    # What the host does after the wait, it also does where it need not wait.
    after = start[event] - device.end_ns[hidden[event]]
    edges.add(tasks.finish[before[event]], tasks.begin[event], np.maximum(after, _RESUME_NS), EdgeKind.HOST)
    edges.add(interval_tasks[hidden[event]], tasks.begin[event], after, EdgeKind.HIDDEN)
    return len(event)


def _predecessors(host: HostEvents) -> tuple[Int64, NDArray[np.bool_]]:
    """Return what each event follows on its thread, or -1, and whether that event is around it.

    The predecessor is the event that ended last. Within an event that still runs, it is the one before, or if that
    still runs too, it encloses this one::

        ├── a ─────────────┤  ├ d ┤       b is nested in a · c follows b · d follows a, which ended after c
          ├ b ┤  ├ c ┤
    """
    count = len(host)
    order = np.argsort(host.thread, kind="stable")
    first = np.ones(count, np.bool_)
    first[1:] = host.thread[order[1:]] != host.thread[order[:-1]]
    # The latest end so far on the thread, and who has it: ends by rank, one thread above the other.
    rank = np.empty(count, np.int64)
    rank[np.argsort(host.end_ns[order], kind="stable")] = np.arange(count)
    reach = np.maximum.accumulate(rank + np.cumsum(first) * count)
    holder = order[np.argsort(rank)][reach % count] if count else order
    last, latest = np.append(-1, order[:-1]), np.append(-1, holder[:-1])
    started = host.start_ns[order]
    inside = host.end_ns[latest] > started
    # A mark starts with what it is around.
    before = np.where(inside, last, latest)
    within = inside & (host.end_ns[last] > started)
    before[first], within[first] = -1, False
    result, nested = np.empty(count, np.int64), np.empty(count, np.bool_)
    result[order], nested[order] = before, within
    return result, nested


def _handed_over(host: HostEvents, before: Int64, event: Int64) -> Int64:
    """Return for each host event the one of another thread that it went on after, or -1; only for *event*.

    It is the last to end among the last events of the other threads, if it ended after the predecessor.
    """
    best = np.full(len(event), -1, np.int64)
    ended = np.where(before[event] >= 0, host.end_ns[before[event]], np.iinfo(np.int64).min)
    for thread in unique(host.thread).tolist():
        own = np.flatnonzero(host.thread == thread)
        place = np.searchsorted(own, event) - 1
        last = own[place]
        end = host.end_ns[last]
        better = (place >= 0) & (host.thread[event] != thread) & (end <= host.start_ns[event]) & (end > ended)
        best, ended = np.where(better, last, best), np.where(better, end, ended)
    result = np.full(len(host), -1, np.int64)
    result[event] = best
    return result


def _hidden_waits(
    host: HostEvents, device: DeviceOrder, before: Int64, pause: Int64, names: tuple[str, ...], *, on_cpu: bool
) -> Int64:
    """Return for each host event the device interval that it waited for in the pause before it, or -1."""
    found = np.full(len(host), -1, np.int64)
    event = np.flatnonzero((before >= 0) & (pause > 0))
    chosen = np.flatnonzero(device.communication & (device.launched_by >= 0)) if on_cpu else np.arange(len(device))
    launch = np.append(host.start_ns, UNKNOWN)[device.launched_by[chosen]]
    work = Work(device.start_ns[chosen], device.end_ns[chosen], launch, device.lane[chosen], device.message[chosen])
    needs_events = passing(NEEDS_EVENTS.match, names)
    place = host.name[before[event]].astype(np.int64) * len(names) + host.name[event]
    pauses = Pauses(host.end_ns[before[event]], host.start_ns[event], needs_events[host.name[event]], place)
    interval = awaited(pauses, work, on_cpu=on_cpu)
    found[event[interval >= 0]] = chosen[interval[interval >= 0]]
    return found


Align = Callable[[Int64], Int64]
"""Converts times of a process to the clock that all ranks share."""


class ProcessTasks(msgspec.Struct, frozen=True):
    """What a process adds to the graph: its tasks, and its edges, which have the numbers of the whole graph."""

    start_ns: Int64
    duration_ns: Int64
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    """Index into the names of the process, as is the operator, or -1."""
    operator: NDArray[np.int32]
    edge: Edge

    def __len__(self) -> int:
        return len(self.start_ns)


class Process(msgspec.Struct, frozen=True):
    """Where the tasks of one process are in the graph: host events, returns of blocking calls, device intervals.

    What is in the graph is not here again: a run of thousands of ranks has room for it once.
    """

    on_cpu: bool
    """Whether operators compute, and gloo communicates."""
    host: HostEvents
    """On the shared clock, as are the device intervals."""
    device: DeviceOrder
    blocking: BlockingCalls
    waits: StreamWaits
    hidden_waits: int
    names: tuple[str, ...]
    step_names: tuple[str, ...]
    """Of the spans between two marks, as of a timeline's windows."""
    first_task: int
    timelines: tuple[tuple[int, Int64], ...]
    """Number of each timeline in the run, and the task of each of its intervals, or -1."""
    later_ns: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    """First time of each window after the first, where there are several, which nothing connects."""

    def __len__(self) -> int:
        return len(self.host) + len(self.blocking) + len(self.device)

    @property
    def host_tasks(self) -> HostTasks:
        """The tasks of each host event."""
        return _host_tasks(self.host, self.blocking, self.first_task)

    @property
    def interval_tasks(self) -> Int64:
        """Task of each device interval."""
        return self.first_task + len(self.host) + len(self.blocking) + np.arange(len(self.device))

    @property
    def mark_tasks(self) -> Int64:
        """Task of the start of each step, and of the end of the last; empty without marks."""
        return self.first_task + self.host.marks

    @property
    def step_count(self) -> int:
        """Number of steps; 1 without marks."""
        return max(1, sum(not name.startswith(BETWEEN) for name in self.step_names))


def _host_tasks(host: HostEvents, blocking: BlockingCalls, first_task: int) -> HostTasks:
    begin = first_task + np.arange(len(host))
    finish = begin.copy()
    finish[blocking.event] = first_task + len(host) + np.arange(len(blocking))
    return HostTasks(begin, finish)


def build_process(
    events: RankEvents, timelines: Sequence[tuple[int, Timeline]], align: Align, first_task: int
) -> tuple[Process, ProcessTasks]:
    """Build the tasks and edges of one process.

    Args:
        events: as recorded.
        timelines: those of the process, with their numbers in the run.
        align: to the shared clock.
        first_task: number of the process's first task.

    Raises:
        DptraceError: the file has no call of the host.
    """
    intervals = [_intervals(events, timeline) for _, timeline in timelines]
    # All of gloo's events are, also those that no step has.
    communication = np.full(len(events.start_ns), events.on_cpu)
    for (_, timeline), places in zip(timelines, intervals, strict=True):
        comm = (timeline.kind == Kind.COMMUNICATION) & (places >= 0)
        communication[places[comm]] = True
    operators = _operators(events, timelines, align)
    events = _aligned(events, align)
    host = host_events(events, operators)
    if not len(host):
        raise DptraceError(
            f"{timelines[0][1].path}: has work of the device but no call of the host, which a replay needs. Record CPU "
            "activities, too."
        )
    end_mark = (END,) if len(host.marks) else ()
    # Ranks have most names in common.
    names = tuple(map(sys.intern, (*events.names, *events.step_names, *end_mark)))
    device = device_order(events, host, communication)
    blocking = blocking_calls(events, host, device, names)
    tasks = _host_tasks(host, blocking, first_task)
    interval_tasks = first_task + len(host) + len(blocking) + np.arange(len(device))
    edges = Edges()
    hidden = add_host_order(edges, host, device, tasks, interval_tasks, names)
    _add_blocking(edges, blocking, tasks, interval_tasks)
    device.add_edges(edges, host, names, tasks.begin, interval_tasks)
    waits = add_stream_waits(edges, events, host, device, names, interval_tasks)
    placed = tuple(
        (number, _tasks_of(timeline, places, interval_tasks, tasks.begin[host.of_operator]))
        for (number, timeline), places in zip(timelines, intervals, strict=True)
    )
    columns = _columns(events, host, device, blocking)
    built = ProcessTasks(*columns, _within_windows(edges.table(), columns[0], first_task, events.later_ns))
    # Only the edges needed these.
    host = replace(host, of_call=EMPTY[0], of_operator=EMPTY[0], operator=EMPTY[0].astype(np.int32))
    device = replace(device, previous=EMPTY[0], latency_ns=EMPTY[0], after_ns=EMPTY[0])
    what = host, device, blocking, waits, hidden, names
    return Process(events.on_cpu, *what, events.step_names, first_task, placed, events.later_ns), built


def _within_windows(edge: Edge, start_ns: Int64, first_task: int, later_ns: Int64) -> Edge:
    """Return the edges within a window: what happened between two is unknown, so that each begins as recorded."""
    if not len(later_ns):
        return edge
    window = np.searchsorted(later_ns, start_ns, side="right")
    return edge.take(window[edge.src - first_task] == window[edge.dst - first_task])


def _intervals(events: RankEvents, timeline: Timeline) -> Int64:
    """Return the place of each interval of a timeline among the device intervals of its process, or -1."""
    own = np.arange(len(events.start_ns)) if timeline.on_cpu else np.flatnonzero(events.device == timeline.device)
    wanted = np.flatnonzero(timeline.kind == Kind.COMMUNICATION) if timeline.on_cpu else np.arange(len(timeline))
    places = np.full(len(timeline), -1, np.int64)
    if len(own) == len(wanted):
        places[wanted] = own
        return places
    # The timeline may lack a step that was not finished: start and stream identify an interval.
    lanes, lane = np.unique(np.append(events.stream[own], timeline.lane[wanted]), return_inverse=True)
    _, time = np.unique(np.append(events.start_ns[own], timeline.start_ns[wanted]), return_inverse=True)
    key = time * len(lanes) + lane
    known, first = np.unique(key[: len(own)], return_index=True)
    at = np.minimum(np.searchsorted(known, key[len(own) :]), len(known) - 1)
    places[wanted] = np.where(known[at] == key[len(own) :], own[first[at]], -1)
    return places


def _operators(events: RankEvents, timelines: Sequence[tuple[int, Timeline]], align: Align) -> Operators:
    """Return the operators that compute on a CPU, which are intervals of its timeline."""
    timeline = timelines[0][1]
    if not timeline.on_cpu:
        return Operators.empty()
    compute = _own_operators(timeline)
    number = {name: i for i, name in enumerate(events.names)}
    names = np.array([number.get(name, -1) for name in timeline.names], np.int32)
    return Operators(
        align(timeline.start_ns[compute]),
        align(timeline.end_ns[compute]),
        timeline.lane[compute],
        names[timeline.name[compute]],
    )


def _own_operators(timeline: Timeline) -> Int64:
    """Return the operators of a CPU that are not part of a collective: its thread copies within it.

    A message lasts, on the program's own thread, until that has waited for it.
    """
    compute, comm = (np.flatnonzero((timeline.kind == Kind.COMMUNICATION) == wanted) for wanted in (False, True))
    message = np.array([name.startswith(GLOO_MESSAGES) for name in timeline.names], np.bool_)
    comm = comm[~message[timeline.name[comm]]]
    inside = np.zeros(len(compute), np.bool_)
    at = timeline.start_ns[compute]
    for lane in unique(timeline.lane[comm]).tolist():
        own = comm[timeline.lane[comm] == lane]
        when = union(timeline.start_ns[own], timeline.end_ns[own])
        inside |= (timeline.lane[compute] == lane) & (covered(when, at + 1) > covered(when, at))
    return compute[~inside]


def _aligned(events: RankEvents, align: Align) -> RankEvents:
    return replace(
        events,
        call_start_ns=align(events.call_start_ns),
        call_end_ns=align(events.call_end_ns),
        start_ns=align(events.start_ns),
        end_ns=align(events.end_ns),
        step_start_ns=align(events.step_start_ns),
        step_end_ns=int(align(np.array([events.step_end_ns]))[0]),
        later_ns=align(events.later_ns) if len(events.later_ns) else events.later_ns,
    )


def _add_blocking(edges: Edges, blocking: BlockingCalls, tasks: HostTasks, interval_tasks: Int64) -> None:
    """Let each blocking call return after its own time and after what it waits for."""
    begin, finish = tasks.begin[blocking.event], tasks.finish[blocking.event]
    edges.add(begin, finish, blocking.own_ns, EdgeKind.HOST)
    for kind in unique(blocking.edge_kind).tolist():
        chosen = blocking.edge_kind == kind
        source, lag = interval_tasks[blocking.target[chosen]], blocking.resume_ns[chosen]
        edges.add(source, finish[chosen], lag, EdgeKind(kind), from_end=~blocking.queue[chosen])


def _tasks_of(timeline: Timeline, places: Int64, interval_tasks: Int64, operator_tasks: Int64) -> Int64:
    """Return the task of each interval of a timeline, or -1."""
    tasks = np.where(places >= 0, np.append(interval_tasks, -1)[places], -1)
    if timeline.on_cpu:
        tasks[_own_operators(timeline)] = operator_tasks
    return tasks


def _columns(
    events: RankEvents, host: HostEvents, device: DeviceOrder, blocking: BlockingCalls
) -> tuple[Int64, Int64, NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]:
    """Return start, duration, kind, name and operator of each task: host events, returns, device intervals."""
    length = host.end_ns - host.start_ns
    length[blocking.event] = 0
    returns = host.end_ns[blocking.event]
    kind = np.where(
        device.communication, TaskKind.COMMUNICATION, np.where(events.memory, TaskKind.MEMORY, TaskKind.COMPUTE)
    )
    by = device.launched_by
    launched_in = np.where(by >= 0, host.operator[by] if len(host) else -1, -1)
    return (
        np.concatenate((host.start_ns, returns, device.start_ns)),
        np.concatenate((length, np.zeros(len(returns), np.int64), device.end_ns - device.start_ns)),
        np.concatenate((host.kind, np.full(len(returns), TaskKind.RETURN), kind)).astype(np.uint8),
        np.concatenate((host.name, host.name[blocking.event], events.name)).astype(np.int32),
        np.concatenate((host.operator, host.operator[blocking.event], launched_in)).astype(np.int32),
    )
