"""The chain of kernels, collectives, launches and host gaps that sets the length of a step, across ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.columns import Columns
from dptrace.core.intervals import Int64, members, repeated
from dptrace.core.table import with_strings
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, Graph, TaskKind
from dptrace.replay.graph.schedule import Times, schedule_of
from dptrace.replay.graph.tasks import modules_of_tasks
from dptrace.timeline.model import (
    BEFORE_FIRST,
    BETWEEN,
    MANY_OPERATORS,
    HostActivity,
    HostCause,
    HostLabel,
    main_activity,
)
from dptrace.timeline.steps import with_usual_steps

if TYPE_CHECKING:
    import pandas as pd


# Which edge each task waited for longest, and the chain of such edges that ends at a task: its critical path.


class Chain(Columns, frozen=True):
    """A chain of tasks from the last to the first, each of which started as its edge from the next one allowed."""

    task: Int64
    edge: Int64
    """The edge that each task waited for, or -1 for the first task of the chain."""


def binding_edges(graph: Graph, times: Times) -> Int64:
    """Return for each task the edge that set its start, or -1 for a task without edges."""
    edge = graph.edge
    sets = np.flatnonzero(edge.came(times.start_ns, times.end_ns) == times.start_ns[edge.dst])
    binding = np.full(len(graph), -1, np.int64)
    # Of several, the first counts: edges are sorted by destination, so the last to be written is the first of it.
    binding[edge.dst[sets[::-1]]] = sets[::-1]
    return binding


def chain_to(graph: Graph, binding: Int64, task: int, times: Times, since_ns: int | None = None) -> Chain:
    """Follow the binding edges back from a task, to one that starts at *since_ns* or before, or has no edge."""
    before = np.full(len(graph), -1, np.int64)
    bound = binding >= 0
    before[bound] = graph.edge.src[binding[bound]]
    if since_ns is not None:
        before[times.start_ns <= since_ns] = -1
    # A chain can have as many tasks as the graph. Most follow the task with the number before theirs, so that only the
    # jumps between such runs are followed one by one.
    number = np.arange(len(graph))
    begins = np.maximum.accumulate(np.where(before == number - 1, 0, number))
    lasts, firsts = [task], [int(begins[task])]
    while (task := int(before[firsts[-1]])) >= 0:
        lasts.append(task)
        firsts.append(int(begins[task]))
    last = np.array(lasts, np.int64)
    run, nth = repeated(last - np.array(firsts, np.int64) + 1)
    chain = last[run] - nth
    edge = binding[chain]
    edge[-1] = -1
    return Chain(chain, edge)


# How much later each task could end without delaying a step.

FREE = 1 << 62
"""The latest end of a task that the step does not wait for: after all times, which count from 1970."""
_LATEST = FREE - (1 << 60)
"""Starts from here on are of tasks that nothing holds."""


def slack_of(graph: Graph, times: Times, last: Int64, latest_ns: Int64) -> Int64:
    """Return the slack of each task in ns: how much longer it could take before the end of a step moves.

    It is FREE less some time where the step does not wait for it.

    Args:
        last: the tasks that the step waits for.
        latest_ns: when each of these can end at the latest.
    """
    edge = graph.edge
    # The latest start of each task, from those that wait for it: half of each pair is its start, half its end.
    latest = [FREE] * (2 * len(graph))
    for task, ns in zip(last.tolist(), latest_ns.tolist(), strict=True):
        latest[2 * task + 1] = ns
    sources = (2 * edge.src + edge.from_end).tolist()
    lags, first, duration = edge.lag_ns.tolist(), graph.first.tolist(), (times.end_ns - times.start_ns).tolist()
    for task in graph.order[::-1].tolist():
        start = latest[2 * task + 1] - duration[task]
        if start < latest[2 * task]:
            latest[2 * task] = start
        start = latest[2 * task]
        if start >= _LATEST:
            continue
        for i in range(first[task], first[task + 1]):
            if start - lags[i] < latest[sources[i]]:
                latest[sources[i]] = start - lags[i]
    table = np.array(latest, np.int64).reshape(-1, 2)
    return table[:, 1] - times.end_ns


# What a piece of host time is called: by what the host did for most of it, never by the call that follows alone.
#
# ::
#
#     host      │ aten::cat │   sleep in "# forward"        │ aten::mm │
#     pieces    └───────────┴───────────────────────────────┴──────────┘
#     names       aten::cat   Python in # forward, before aten::mm
#
# A piece is a task's pause and, if the task is a call, the call itself. Where the pause took longer, the host's
# recorded activity names it; the call is inside an operator, which then names it.

_LONG_NS = 500_000
"""From here on, all that the host did in a pause counts, of shorter ones their middle; and a call has its own name."""
_OWN = (TaskKind.CALL, TaskKind.RETURN)


class HostNames(msgspec.Struct, frozen=True):
    """The names of the host's pieces."""

    name: NDArray[np.int32]
    """Of the piece of each task, index into ``names``; that of an empty name for tasks that no process has."""
    names: tuple[str, ...]


def host_names(model: Model, tasks: Int64 | None = None) -> HostNames:
    """Return the names of the pieces that lead to tasks, or are calls.

    Args:
        tasks: those to name, the others get any name; by default, all.
    """
    graph, numbers = model.graph, {"": 0}
    operator = np.where(graph.operator >= 0, graph.operator, graph.name)
    before = _starts_of_pauses(model)
    found = np.zeros(len(graph), np.int32)
    chosen = np.ones(len(graph), np.bool_)
    if tasks is not None:
        chosen[:] = False
        chosen[tasks] = True
    calls = graph.of(*_OWN)
    wanted = np.flatnonzero(chosen)
    of_process = members(graph.process[wanted], len(model.processes))
    for process, own in zip(model.processes, (wanted[at] for at in of_process), strict=True):
        number = process.timelines[0][0]
        host = model.run.timelines[number].host
        since, until = (model.run.cross_rank.clocks.unalign(number, column[own]) for column in (before, graph.start_ns))
        length = np.where(calls[own], graph.duration_ns[own], 0)
        place = np.searchsorted(host.start_ns, (since + until) // 2, side="right") - 1
        label = np.where(place >= 0, host.label[np.maximum(place, 0)], -1) if len(host.label) else np.full(len(own), -1)
        pause = until - since
        by_call = length >= pause
        for row in np.flatnonzero(~by_call & (pause >= _LONG_NS)).tolist():
            following = graph.names[operator[own[row]]]
            text = name_of(host.spent(int(since[row]), int(until[row])), following)
            found[own[row]] = numbers.setdefault(text, len(numbers))
        # One number for each combination of label (one more for the call itself), operator and own name.
        code = np.where(by_call, len(host.labels) + (length >= _LONG_NS), np.maximum(label, -1)) + 1
        short = np.flatnonzero(by_call | (pause < _LONG_NS))
        keys = np.stack((code[short], operator[own[short]], graph.name[own[short]]))
        distinct, which = np.unique(keys, axis=1, return_inverse=True)
        texts = [
            numbers.setdefault(_short(host, code - 1, graph.names[operator], graph.names[name]), len(numbers))
            for code, operator, name in distinct.T.tolist()
        ]
        found[own[short]] = np.array(texts, np.int32)[which.ravel()] if texts else 0
    return HostNames(found, tuple(numbers))


def _starts_of_pauses(model: Model) -> Int64:
    """Return when the host was free to begin each task, on the shared clock; the task's start without a pause."""
    graph = model.graph
    edge = graph.edge.take(graph.edge.of(EdgeKind.HOST, EdgeKind.THREAD, EdgeKind.HIDDEN) & graph.edge.from_end)
    start = np.full(len(graph), np.iinfo(np.int64).min)
    np.maximum.at(start, edge.dst, graph.end_ns[edge.src])
    return np.where(start == np.iinfo(np.int64).min, graph.start_ns, np.minimum(start, graph.start_ns))


def _short(host: HostActivity, label: int, operator: str, name: str) -> str:
    """Return the name of a call, or of a short pause with a label, or -1."""
    if label > len(host.labels):
        return name if name == operator else f"{name} in {operator}"
    if label == len(host.labels):
        return operator
    return name_of({host.labels[label]: 1} if label >= 0 else {}, operator, many=operator)


def name_of(spent: Mapping[HostLabel, int], following: str, many: str = "") -> str:
    """Return what a host did for most of a piece of time.

    Args:
        spent: ns of each thing it did; they add up to the piece.
        following: what it did next.
        many: what many short operators are called; by default by the range that most of them are in.

    >>> sleep, product = HostLabel(HostCause.PYTHON, "# forward"), HostLabel(HostCause.OPERATOR, "aten::mm")
    >>> name_of({sleep: 9, product: 5}, "aten::cat"), name_of({sleep: 5, product: 9}, "aten::cat")
    ('Python in # forward, before aten::cat', 'aten::mm')
    >>> name_of({HostLabel(HostCause.OPERATOR, f"aten::{i}", "# forward"): 2 for i in range(9)}, "aten::cat")
    'many operators in # forward'
    """
    cause, text, _ = main_activity(spent)
    if many and text.startswith(MANY_OPERATORS):
        return many
    before = text == MANY_OPERATORS or cause in (HostCause.PYTHON, HostCause.NOTHING_RECORDED)
    return f"{text}, before {following}" if before else text


LINK_KINDS = ("compute", "memory", "transfer", "host", "launch", "stream", "wait", "absent_ranks", "unexplained")
"""What a piece of a path is: work of a device, a collective's transfer, the host's calls and pauses, the latency of
launches, gaps between kernels of a stream, returns of waits, the arrival of ranks that were not recorded, and time
before a task of which the recording does not say what it waited for."""

HOST = "host"
TIMED_TASKS = {
    "compute": (TaskKind.COMPUTE,),
    "memory": (TaskKind.MEMORY,),
    "transfer": (TaskKind.TRANSFER, TaskKind.COMMUNICATION),
    HOST: (TaskKind.CALL,),
}
"""The tasks whose own time is a kind of piece of a path."""
_LAGS = {
    HOST: (EdgeKind.HOST, EdgeKind.THREAD, EdgeKind.HIDDEN),
    "launch": (EdgeKind.LAUNCH,),
    "stream": (EdgeKind.STREAM,),
    "absent_ranks": (EdgeKind.PEER,),
    "wait": (EdgeKind.SYNCHRONIZE, EdgeKind.QUEUE, EdgeKind.JOIN, EdgeKind.PRODUCE),
}
"""The edges whose lag is a kind of piece."""
_BEFORE = {
    "launch": "launch latency",
    "stream": "gap in the stream",
    "wait": "return of a wait",
    "absent_ranks": "absent ranks",
    "unexplained": "unexplained time",
}
"""What a piece is called that is no task's own time: it is named with the task that it leads to."""
_OF_TASK = {task: kind for kind, tasks in TIMED_TASKS.items() for task in tasks}
_OF_EDGE = {edge: kind for kind, edges in _LAGS.items() for edge in edges}


class Links(Columns, frozen=True):
    """The pieces of a chain from the first to the last; one entry per piece in each column."""

    start_ns: Int64
    end_ns: Int64
    kind: NDArray[np.uint8]
    """Index into :data:`LINK_KINDS`."""
    task: Int64
    """The task that the piece is of, or leads to."""

    def by_kind(self) -> dict[str, int]:
        """Return the ns of each kind, in the order of :data:`LINK_KINDS`."""
        total = np.bincount(self.kind, self.end_ns - self.start_ns, len(LINK_KINDS))
        return {kind: round(ns) for kind, ns in zip(LINK_KINDS, total.tolist(), strict=True)}


def links_of(model: Model, times: Times, chain: Chain, since_ns: int, until_ns: int) -> Links:
    """Cut a chain into pieces: from *since_ns* to *until_ns*, without gap or overlap.

    A task's piece lasts from its start to its end, or to the start of what waits for its start; the piece before it
    is the lag of its edge. Where a lag is negative, the piece that it runs into is shorter.
    """
    graph = model.graph
    task, edge = chain.task[::-1], chain.edge[::-1]
    kinds = np.array([LINK_KINDS.index(_OF_TASK.get(TaskKind(k), "host")) for k in range(len(TaskKind))], np.uint8)
    lags = np.array([LINK_KINDS.index(_OF_EDGE.get(EdgeKind(k), "wait")) for k in range(len(EdgeKind))], np.uint8)
    # Each task ends its lag's piece at its start, and its own piece where the next task's lag begins:
    # lag → start of a │ a → where the lag to b begins │ lag → start of b │ b …
    start = times.start_ns[task]
    leaves = np.append(np.where(graph.edge.from_end[edge[1:]], times.end_ns[task[:-1]], start[:-1]), until_ns)
    bounds = np.empty(2 * len(task) + 1, np.int64)
    bounds[0], bounds[1::2], bounds[2::2] = since_ns, start, leaves
    bounds = np.maximum.accumulate(np.clip(bounds, since_ns, until_ns))
    bounds[-1] = until_ns
    kind = np.empty(2 * len(task), np.uint8)
    unexplained = LINK_KINDS.index("unexplained")
    kind[0::2] = np.where(edge >= 0, lags[graph.edge.kind[edge]] if len(graph.edge) else unexplained, unexplained)
    kind[1::2] = kinds[graph.kind[task]]
    links = Links(bounds[:-1], bounds[1:], kind, np.repeat(task, 2))
    return links.take(links.end_ns > links.start_ns)


def path_of_run(model: Model, times: Times) -> Links:
    """Return the critical path of the whole recording, to the end of its last step; of several, one after the other."""
    binding, found = binding_edges(model.graph, times), list[Links]()
    for last in last_tasks(model, times, step_ends(model)):
        chain = chain_to(model.graph, binding, last, times)
        found.append(links_of(model, times, chain, int(times.start_ns[chain.task[-1]]), int(times.end_ns[last])))
    return Links.concat(found)


class PathPiece(msgspec.Struct, frozen=True):
    """A piece of a critical path, in words."""

    length_ns: int
    kind: str
    """One of :data:`LINK_KINDS`."""
    rank: int | None
    """None for a transfer, which is of all ranks."""
    name: str
    """Of a piece of the host, what it did for most of it; of a gap or a latency, also what follows it."""
    operator: str
    """The outermost operator that ran or launched it; empty without one."""


def longest_pieces(model: Model, links: Links, count: int) -> tuple[PathPiece, ...]:
    """Return the longest pieces of a path, longest first."""
    graph = model.graph
    length = links.end_ns - links.start_ns
    ranks = {index: timeline.rank for timeline, (index, _) in zip(model.run.timelines, model.place, strict=True)}
    pieces = []
    longest = np.argsort(-length, kind="stable")[:count]
    is_host = links.kind == LINK_KINDS.index("host")
    names = host_names(model, links.task[longest])
    for number in longest.tolist():
        task, kind = int(links.task[number]), LINK_KINDS[links.kind[number]]
        name = (names.names[names.name[task]] if is_host[number] else "") or graph.names[graph.name[task]]
        operator = int(graph.operator[task])
        pieces.append(
            PathPiece(
                length_ns=int(length[number]),
                kind=kind,
                rank=ranks.get(int(graph.process[task])),
                name=f"{_BEFORE[kind]}, before {name}" if kind in _BEFORE else name,
                operator=graph.names[operator] if operator >= 0 else "",
            )
        )
    return tuple(pieces)


class StepEnds(msgspec.Struct, frozen=True):
    """The tasks that a step waits for to be over; one entry per task in each column."""

    task: Int64
    """A mark of the host, an operator, an interval of a device or the transfer that it is over with."""
    step: Int64
    """Index of the step that it has to end before, or -1 for what came before the first."""
    last: tuple[int, ...]
    """Index of the last step of each recording."""


def step_order(model: Model) -> tuple[str, ...]:
    """Return the names of all steps in the order of their times; some ranks can lack some."""
    return tuple(chain.from_iterable(model.run.windows))


def step_ends(model: Model) -> StepEnds:
    """Return what ends each step of a run: the next mark on each host, and all that was launched up to it."""
    order = step_order(model)
    tasks, steps = list[Int64](), list[Int64]()
    for number in with_usual_steps(model.run.timelines):
        timeline, (_, own) = model.run.timelines[number], model.place[number]
        counted = (own >= 0) & ((timeline.step >= 0) | (timeline.span == BEFORE_FIRST))
        tasks.append(model.over[own[counted]])
        # Entry -1 is for what came before the rank's first step: 4 5 6 → 4 5 6 3.
        steps.append(np.roll(_numbers(timeline.windows.names, order), -1)[timeline.step[counted]])
    for process in model.processes:
        names = [name for name in process.step_names if not name.startswith(BETWEEN)]
        # A mark ends the step before it; the one after a time that is not recorded ends none.
        ends = [True, *(not name.startswith(BETWEEN) for name in process.step_names)]
        marks = process.mark_tasks
        tasks.append(marks[ends[: len(marks)]])
        steps.append(_numbers(names, order)[: len(tasks[-1])])
    ended = np.concatenate(steps)
    last = [count - 1 for count in accumulate(map(len, model.run.windows))]
    return StepEnds(np.concatenate(tasks), ended, (*last[:-1], int(ended.max(initial=-1))))


def _numbers(names: Sequence[str], order: Sequence[str]) -> Int64:
    """Return the number of what came before a rank's first step, then that of each of its steps, among all.

    A step that is not among all follows the one before.
    """
    place = {name: number for number, name in enumerate(order)}
    known = [(index, place[name]) for index, name in enumerate(names) if name in place]
    before = known[0][1] - known[0][0] - 1 if known else BEFORE_FIRST
    if tuple(names) == tuple(order):
        return np.arange(len(names) + 1) - 1
    numbers = [before]
    for name in names:
        numbers.append(place.get(name, numbers[-1] + 1))
    return np.array(numbers, np.int64)


def last_tasks(model: Model, times: Times, ends: StepEnds) -> list[int]:
    """Return the task whose end ends the last step on all ranks, of each recording."""
    recording = np.searchsorted(ends.last, ends.step)
    tasks = [ends.task[recording == number] for number in range(len(ends.last))]
    return [int(own[times.end_ns[own].argmax()]) for own in tasks if len(own)] or [int(times.start_ns.argmin())]


# What a step would gain if something took 10 % less time, by replay: a second chain may be nearly as long.

SHORTER = 0.1


class Shortening:
    """Replays of a run in which something takes 10 % less time in every step, and as much as before ahead of the first.

    What is ahead of the first step, such as the start of the profiler, would make no step shorter, but could be most of
    what a replay gains.
    """

    def __init__(self, model: Model, ends: StepEnds) -> None:
        """Replay the run as it was.

        Args:
            ends: the tasks that end each step.
        """
        self._graph = model.graph
        self._schedule = schedule_of(model.graph)
        lasts = (ends.task[ends.step == last] for last in ends.last)
        self._last = [own for own in lasts if len(own)]
        self._steps = max(1, int(ends.step.max()) + 1)
        times = self._schedule.run(model.graph.duration_ns, model.graph.edge.lag_ns).times
        self._end = [int(times.end_ns[own].max()) for own in self._last]
        # A tenth of each task's time, and of each edge's lag, as far as they lie in the steps.
        ahead, marks = ends.task[ends.step < 0], times.end_ns[_first_marks(model)]
        since = np.full(len(model.graph), times.end_ns[ahead].max() if len(ahead) else times.start_ns.min())
        for end, until in pairwise(self._end):
            since[times.start_ns >= end] = marks[(marks > end) & (marks <= until)].max(initial=end)
        edge, length = model.graph.edge, times.end_ns - times.start_ns
        self._of_task = _tenth(np.clip(times.end_ns - since, 0, length))
        self._of_edge = _tenth(np.clip(times.start_ns[edge.dst] - since[edge.dst], 0, np.maximum(edge.lag_ns, 0)))

    def of_name(self, kind: str, name: int, names: NDArray[np.int32]) -> int:
        """Return the gain of a step in ns if all pieces of a kind and name took less.

        Args:
            kind: one of LINK_KINDS.
            name: index of the name, which only tasks have; what only edges have is shorter under all names.
            names: the name that each task counts for.
        """
        graph, edge = self._graph, self._graph.edge
        edges = edge.of(*_LAGS.get(kind, ()))
        if kind == HOST:
            edges &= (names[edge.dst] == name) & edge.from_end
        return self._gain(graph.of(*TIMED_TASKS.get(kind, ())) & (names == name), edges)

    def of_tasks(self, tasks: NDArray[np.bool_]) -> int:
        """Return the gain of a step in ns if these tasks, and the host's pauses before them, took less."""
        edge = self._graph.edge
        timed = self._graph.of(*(kind for kinds in TIMED_TASKS.values() for kind in kinds))
        return self._gain(tasks & timed, edge.of(*_LAGS[HOST]) & edge.from_end & tasks[edge.dst])

    def _gain(self, tasks: NDArray[np.bool_], edges: NDArray[np.bool_]) -> int:
        graph = self._graph
        durations = graph.duration_ns - np.where(tasks, self._of_task, 0)
        lags = graph.edge.lag_ns - np.where(edges, self._of_edge, 0)
        shorter = self._schedule.run(durations, lags)
        ended = sum(int(shorter.ends(own).max()) for own in self._last)
        return round((sum(self._end) - ended) / self._steps)


def _first_marks(model: Model) -> Int64:
    """Return the marks that all recordings but the first begin with."""
    marks = [
        process.mark_tasks[1:][
            [name.startswith(BETWEEN) for name in process.step_names[: max(len(process.mark_tasks) - 1, 0)]]
        ]
        for process in model.processes
    ]
    return np.concatenate(marks)


def _tenth(ns: Int64) -> Int64:
    shorter: Int64 = np.rint(ns * SHORTER).astype(np.int64)
    return shorter


# Where a recording has the pieces of a critical path: on which device, in which interval, and when.

NOWHERE = -1


class RecordedPath(msgspec.Struct, frozen=True):
    """The places of a path's pieces in the recording; one entry per piece in each column."""

    timeline: Int64
    """Number of the timeline in the whole run: the device's, of the host the first one of its process, of a transfer
    that of the last rank to arrive; NOWHERE where no recorded rank has it."""
    interval: Int64
    """Index of the interval that the piece is the time of; NOWHERE for calls, pauses and latencies."""
    start_ns: Int64
    """On the timeline's own clock, as recorded; the length is that of the replay."""
    end_ns: Int64
    before: NDArray[np.bool_]
    """Whether the piece lies before its task, as the pause before a call, and is not the task's own time."""


def recorded_path(model: Model, times: Times, links: Links) -> RecordedPath:
    """Find the pieces of a path of the unchanged run in its recording."""
    timeline, interval = _owners(model)
    task = _of_a_rank(model, times)[links.task]
    # A lag's piece lies before its task.
    own = links.start_ns >= times.start_ns[links.task]
    number = np.where(task >= 0, timeline[task], NOWHERE)
    moved = model.graph.end_ns[links.task] - times.end_ns[links.task]
    start, end = links.start_ns + moved, links.end_ns + moved
    for place in np.unique(number[number >= 0]).tolist():
        chosen = number == place
        start[chosen], end[chosen] = (_on_own_clock(model, place, column[chosen]) for column in (start, end))
    return RecordedPath(number, np.where(own & (task >= 0), interval[task], NOWHERE), start, end, ~own)


def _owners(model: Model) -> tuple[Int64, Int64]:
    """Return the timeline of each task, and its interval there, or NOWHERE."""
    first = np.array([process.timelines[0][0] for process in model.processes] + [NOWHERE], np.int64)
    timeline = first[model.graph.process]
    interval = np.full(len(model.graph), NOWHERE, np.int64)
    for number, (_, tasks) in enumerate(model.place):
        placed = np.flatnonzero(tasks >= 0)
        timeline[tasks[placed]], interval[tasks[placed]] = number, placed
    return timeline, interval


def _of_a_rank(model: Model, times: Times) -> Int64:
    """Return each task, and in place of a transfer the last arrival at it, or -1."""
    transfers = model.transfers
    task = np.where(model.graph.of(TaskKind.TRANSFER), -1, np.arange(len(model.graph)))
    # The arrival that ends last comes last, and stays.
    order = np.argsort(times.end_ns[transfers.arrival], kind="stable")
    task[transfers.task[transfers.instance[order]]] = transfers.arrival[order]
    return task


def _on_own_clock(model: Model, number: int, time: Int64) -> Int64:
    """Convert times on the shared clock to the clock of a timeline, from its intervals on both."""
    timeline, (_, tasks) = model.run.timelines[number], model.place[number]
    placed = np.flatnonzero(tasks >= 0)
    if not len(placed):
        return time
    shared = model.graph.start_ns[tasks[placed]]
    offset = timeline.start_ns[placed] - shared
    # Relative to the first ones: times since 1970 in ns do not fit the digits of a float.
    drift = np.interp((time - shared[0]).astype(np.float64), shared - shared[0], offset - offset[0])
    own: Int64 = time + offset[0] + np.rint(drift).astype(np.int64)
    return own


# The time of a critical path by module, and what 10 % less time of a module would gain.

NO_MODULE = "(no module)"
"""What is in no module: the optimizer, the time between operators, a step's own calls."""
_KINDS = ("compute", "memory", "transfer", "host")
_MAX_GAINS = 12
"""Modules whose gain is computed: a replay each."""
_COLUMNS = ("module", "path_ns", "share", *(f"{kind}_ns" for kind in _KINDS), "other_ns", "gain_ns")


class ModuleTime(msgspec.Struct, frozen=True):
    """The time of a module on a critical path, in ns."""

    module: str
    path_ns: int
    by_kind: dict[str, int]
    """``compute``, ``memory``, ``transfer`` and ``host``; they and ``other`` add up to ``path_ns``."""
    gain_ns: int | None
    """How much shorter a step would be, by replay, with 10 % less of it; None where it was not computed."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        by_kind = {f"{kind}_ns": ns for kind, ns in self.by_kind.items()}
        return {"module": self.module, "path_ns": self.path_ns, **by_kind, "gain_ns": self.gain_ns}


def module_times(model: Model, links: Links, shortening: Shortening) -> tuple[ModuleTime, ...]:
    """Return the time of a path by module, most first; nothing where no task has a module.

    Raises:
        DptraceError: a file can't be read again.
    """
    modules = modules_of_tasks(model)
    if not modules.names:
        return ()
    count, length = len(modules.names) + 1, links.end_ns - links.start_ns
    # Modules × kinds, in one count; the first row is for what is in no module.
    code = (modules.module[links.task] + 1) * len(LINK_KINDS) + links.kind
    table = np.bincount(code, length, count * len(LINK_KINDS)).astype(np.int64).reshape(count, -1)
    total = table.sum(axis=1)
    found: list[ModuleTime] = []
    for number in np.argsort(-total, kind="stable").tolist():
        if not total[number]:
            break
        by_kind = {kind: int(table[number, LINK_KINDS.index(kind)]) for kind in _KINDS}
        by_kind["other"] = int(total[number]) - sum(by_kind.values())
        wanted = number > 0 and sum(one.gain_ns is not None for one in found) < _MAX_GAINS
        gain = shortening.of_tasks(modules.module == number - 1) if wanted else None
        name = modules.names[number - 1] if number else NO_MODULE
        found.append(ModuleTime(name, int(total[number]), by_kind, gain))
    return tuple(found)


def modules_frame(modules: Sequence[ModuleTime], length_ns: int) -> pd.DataFrame:
    """Return the times as a frame, with their share of a step of *length_ns*."""
    import pandas as pd

    rows = [{**one.to_dict(), "share": one.path_ns / max(1, length_ns)} for one in modules]
    return with_strings(pd.DataFrame(rows, columns=list(_COLUMNS)).astype({"gain_ns": "Int64"}))
