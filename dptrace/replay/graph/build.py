"""Build the dependency graph of a run: every process, the collectives between them, and waits inferred from time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from dptrace.core.intervals import Int64
from dptrace.core.subprocess_pool import collection_paused
from dptrace.core.units import plural
from dptrace.errors import DptraceError
from dptrace.replay.graph.inferred import add_inferred
from dptrace.replay.graph.model import INFERRED, NO_PROCESS, Edge, EdgeKind, Edges, Graph, TaskKind, Tasks
from dptrace.replay.graph.order import order_tasks
from dptrace.replay.graph.per_rank.events import RANK_EVENTS, RankEvents
from dptrace.replay.graph.per_rank.process import Process, build_process
from dptrace.replay.graph.rendezvous import Members, Transfers, add_rendezvous
from dptrace.run.run import Run
from dptrace.timeline.model import Kind, Timeline

__all__ = ["Model", "build_model", "whole_run"]


class Model(msgspec.Struct, frozen=True):
    """A run as tasks: its graph, and where the run's intervals are in it."""

    run: Run
    """The whole run, with all ranks and steps."""
    graph: Graph
    processes: tuple[Process, ...]
    transfers: Transfers
    over: Int64
    """For each task, the one at whose end it is over: a collective ends with its transfer."""
    place: tuple[tuple[int, Int64], ...]
    """Of each timeline: the index of its process, and the task of each of its intervals, or -1."""

    def without_inferred(self) -> Model:
        """Return the model without the waits that only times suggest."""
        edge = self.graph.edge
        return self.with_edges(edge.filter(~edge.of(*INFERRED)))

    def with_edges(self, edge: Edge) -> Model:
        """Return the model with other edges between the same tasks."""
        return replace(self, graph=replace(self.graph, **_ordered(edge, self.graph.start_ns)))

    @property
    def first_timelines(self) -> list[tuple[Process, int]]:
        """Each process with the number of the first timeline of its file."""
        first: dict[int, int] = {}
        for number, (index, _) in enumerate(self.place):
            first.setdefault(index, number)
        return [(self.processes[index], number) for index, number in first.items()]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the graph was inferred from, a sentence each."""
        return tuple(_notes(self))


def whole_run(run: Run) -> Run:
    """Return the run that ranks and steps were selected from."""
    while run.selected_from is not None:
        run = run.selected_from[0]
    return run


@collection_paused()
def build_model(run: Run) -> Model:
    """Build the graph of a whole run, from a second reading of its files.

    Raises:
        DptraceError: a file can't be read again, or the run was opened with ``figures_only``.
    """
    run = whole_run(run)
    if run.figures_only:
        raise DptraceError(f"{run.path}: opened with figures_only, which drops the intervals. Leave it out.")
    clocks = run.cross_rank.clocks
    processes: list[Process] = []
    first = 0
    for timelines in _by_file(run.timelines):
        events = _events(run, timelines[0][1])
        processes.append(build_process(events, timelines, partial(clocks.align, timelines[0][0]), first))
        first += len(processes[-1])
    places = {number: (index, tasks) for index, process in enumerate(processes) for number, tasks in process.timelines}
    place = tuple(places[number] for number in range(len(run.timelines)))
    edges = Edges()
    transfers = _add_transfers(edges, run, place, first)
    tasks = _tasks(processes, transfers)
    known = Edge.joined([*(process.edge for process in processes), edges.table()])
    edge = _over(known, transfers, len(tasks.start_ns))
    graph = Graph(**asdict(tasks), **_ordered(edge, tasks.start_ns))
    inferred = Edges()
    add_inferred(inferred, graph, processes)
    more = _over(inferred.table(), transfers, len(graph))
    if len(more):
        edge = Edge.joined([graph.edge, more])
        graph = replace(graph, **_ordered(edge, graph.start_ns, graph.contradicted))
    return Model(run, graph, tuple(processes), transfers, transfers.ends(len(graph)), place)


def _by_file(timelines: Sequence[Timeline]) -> list[list[tuple[int, Timeline]]]:
    """Group the timelines of a run, with their numbers, by file: each is of one process."""
    files: dict[str, list[tuple[int, Timeline]]] = {}
    for number, timeline in enumerate(timelines):
        files.setdefault(timeline.path or f"timeline {number}", []).append((number, timeline))
    return list(files.values())


def _events(run: Run, timeline: Timeline) -> RankEvents:
    events = run.read_again(timeline, RANK_EVENTS)
    if events is None:
        raise DptraceError(
            f"{timeline.path or run.path}: can't be read a second time, which a replay needs. If it came through a "
            "pipe, save it as a file; if it was moved or changed since, open the run again."
        )
    return events


def _add_transfers(edges: Edges, run: Run, place: Sequence[tuple[int, Int64]], first_task: int) -> Transfers:
    """Let the ranks meet in their matched collectives."""
    across = run.cross_rank
    matches, clocks = across.matches, across.clocks
    tasks = np.full(len(matches.device), -1, np.int64)
    start, end = matches.start_ns.copy(), matches.end_ns.copy()
    for number, timeline in enumerate(run.timelines):
        members = np.flatnonzero(matches.device == number)
        of_call = place[number][1][timeline.kind == Kind.COMMUNICATION]
        tasks[members] = of_call[matches.index[members]]
        start[members] = clocks.align(number, matches.start_ns[members])
        end[members] = clocks.align(number, matches.end_ns[members])
    partial = len(run.ranks) < run.world_size
    return add_rendezvous(edges, matches, Members(tasks, start, end), first_task, partial=partial, on_cpu=run.on_cpu)


def _tasks(processes: Sequence[Process], transfers: Transfers) -> Tasks:
    """Put the tasks of the processes and the transfers one after the other."""
    numbers: dict[str, int] = {}
    name, operator = [], []
    for process in processes:
        own = np.array([numbers.setdefault(one, len(numbers)) for one in process.names] + [-1], np.int32)
        name.append(own[process.name])
        operator.append(own[process.operator])
    kinds = np.array([numbers.setdefault(one, len(numbers)) for one in transfers.kind.tolist()], np.int32)
    count = len(transfers)
    lengths = [len(process) for process in processes]
    start = np.concatenate([*(process.start_ns for process in processes), transfers.arrived_ns])
    duration = np.concatenate([*(process.duration_ns for process in processes), transfers.duration_ns])
    kind = np.concatenate([*(p.kind for p in processes), np.full(count, TaskKind.TRANSFER)]).astype(np.uint8)
    end = start + duration
    end[len(end) - count :] = transfers.end_ns
    duration[transfers.arrival] = 0
    end[transfers.arrival] = start[transfers.arrival]
    kind[transfers.arrival] = TaskKind.ARRIVAL
    owner = np.repeat(np.append(np.arange(len(processes)), NO_PROCESS), [*lengths, count]).astype(np.int32)
    return Tasks(
        start_ns=start,
        duration_ns=duration,
        end_ns=end,
        kind=kind,
        process=owner,
        name=np.concatenate([*name, kinds]),
        operator=np.concatenate([*operator, np.full(count, -1, np.int32)]),
        names=tuple(numbers),
    )


def _over(edge: Edge, transfers: Transfers, tasks: int) -> Edge:
    """Let what waits for the end of a collective wait for its transfer, except for the meeting that it is part of."""
    over = transfers.ends(tasks)
    src = np.where(edge.from_end & ~edge.of(EdgeKind.RENDEZVOUS), over[edge.src], edge.src)
    kept = (src != edge.dst) & ((over[edge.dst] != src) | (src == edge.src))
    return replace(edge, src=src).filter(kept)


def _ordered(edge: Edge, start: Int64, contradicted: int = 0) -> dict[str, Any]:
    """Return the fields of a graph that its edges determine."""
    ordered, first, order = order_tasks(edge, start)
    return {"edge": ordered, "first": first, "order": order, "contradicted": contradicted + len(edge) - len(ordered)}


def _notes(model: Model) -> list[str]:
    """Describe what was inferred, and from what."""
    waits = [process.waits for process in model.processes]
    joins, by_time = sum(one.joins for one in waits), sum(one.joins_by_time for one in waits)
    hidden = sum(process.hidden_waits for process in model.processes)
    timed = int(model.graph.edge.of(*INFERRED).sum())
    notes = []
    if joins:
        notes.append(
            f"Inferred: which collective a stream waits for, in {plural(joins, 'case')}, {by_time:,} of them by time."
        )
    if hidden:
        notes.append(f"Inferred: waits of the host for the device that are not recorded, in {plural(hidden, 'pause')}.")
    if timed:
        notes.append(f"Inferred from time alone: {plural(timed, 'wait')} between streams; ranges are with and without.")
    if contradicted := model.graph.contradicted:
        left_out = plural(contradicted, "dependency", "dependencies")
        notes.append(f"Left out: {left_out} that the recorded order contradicts.")
    return notes
