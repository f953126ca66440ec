"""The chain of kernels, collectives, launches and host gaps that sets the length of a step, across ranks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.device import step_grid
from dptrace.core.intervals import Int64
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.paths.binding_edges import Chain, binding_edges, chain_to
from dptrace.replay.paths.host_names import host_names
from dptrace.replay.simulation.simulate import Times
from dptrace.timeline.model import BEFORE_FIRST

__all__ = [
    "LINK_KINDS",
    "Links",
    "PathPiece",
    "StepEnds",
    "last_task",
    "links_of",
    "longest_pieces",
    "path_of_run",
    "step_ends",
    "step_order",
]


LINK_KINDS = ("compute", "memory", "transfer", "host", "launch", "stream", "wait", "absent_ranks", "unexplained")
"""What a piece of a path is: work of a device, a collective's transfer, the host's calls and pauses, the latency of
launches, gaps between kernels of a stream, returns of waits, the arrival of ranks that were not recorded, and time
before a task of which the recording does not say what it waited for."""

_OF_TASK = {
    TaskKind.COMPUTE: "compute",
    TaskKind.MEMORY: "memory",
    TaskKind.TRANSFER: "transfer",
    TaskKind.COMMUNICATION: "transfer",
}
_OF_EDGE = {
    EdgeKind.HOST: "host",
    EdgeKind.THREAD: "host",
    EdgeKind.LAUNCH: "launch",
    EdgeKind.STREAM: "stream",
    EdgeKind.PEER: "absent_ranks",
}


class Links(msgspec.Struct, frozen=True):
    """The pieces of a chain from the first to the last; one entry per piece in each column."""

    start_ns: Int64
    end_ns: Int64
    kind: NDArray[np.uint8]
    """Index into :data:`LINK_KINDS`."""
    task: Int64
    """The task that the piece is of, or leads to."""

    def __len__(self) -> int:
        return len(self.start_ns)

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
    kept = links.end_ns > links.start_ns
    return Links(*(getattr(links, name)[kept] for name in Links.__struct_fields__))


def path_of_run(model: Model, times: Times) -> Links:
    """Return the critical path of the whole recording, to the end of its last step."""
    last = last_task(model, times, step_ends(model))
    chain = chain_to(model.graph, binding_edges(model.graph, times), last, times)
    return links_of(model, times, chain, int(times.start_ns[chain.task[-1]]), int(times.end_ns[last]))


class PathPiece(msgspec.Struct, frozen=True):
    """A piece of a critical path, in words."""

    length_ns: int
    kind: str
    """One of :data:`LINK_KINDS`."""
    rank: int | None
    """None for a transfer, which is of all ranks."""
    name: str
    """Of a piece of the host, what it did for most of it."""
    operator: str
    """The outermost operator that ran or launched it; empty without one."""

    def to_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


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
        task = int(links.task[number])
        operator = int(graph.operator[task])
        pieces.append(
            PathPiece(
                length_ns=int(length[number]),
                kind=LINK_KINDS[links.kind[number]],
                rank=ranks.get(int(graph.process[task])),
                name=(names.names[names.name[task]] if is_host[number] else "") or graph.names[graph.name[task]],
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


def step_order(model: Model) -> tuple[str, ...]:
    """Return the names of all steps in the order of their times; some ranks can lack some."""
    known = {timeline.windows.names for timeline in model.run.timelines}
    return known.pop() if len(known) == 1 else step_grid(model.run.devices).steps


def step_ends(model: Model) -> StepEnds:
    """Return what ends each step of a run: the next mark on each host, and all that was launched up to it."""
    order = step_order(model)
    tasks, steps = list[Int64](), list[Int64]()
    for timeline, (_, own) in zip(model.run.timelines, model.place, strict=True):
        counted = (own >= 0) & (timeline.step >= BEFORE_FIRST)
        tasks.append(model.over[own[counted]])
        # Entry -1 is for what came before the rank's first step: 4 5 6 → 4 5 6 3.
        steps.append(np.roll(_numbers(timeline.windows.names, order), -1)[timeline.step[counted]])
    for process in model.processes:
        marks = process.mark_tasks
        tasks.append(marks)
        steps.append(_numbers(process.events.step_names, order)[: len(marks)])
    return StepEnds(np.concatenate(tasks), np.concatenate(steps))


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


def last_task(model: Model, times: Times, ends: StepEnds, step: int | None = None) -> int:
    """Return the task whose end ends a step on all ranks, -1 for what came before the first; by default, the last."""
    task = ends.task if step is None else ends.task[ends.step <= step]
    return int(task[times.end_ns[task].argmax()]) if len(task) else int(times.start_ns.argmin())
