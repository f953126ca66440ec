"""The chain of kernels, collectives, launches and host gaps that sets the length of a step, across ranks."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.replay.binding import Chain, binding_edges, chain_to
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.simulate import Times

__all__ = ["Link", "LinkKind", "Links", "links_of", "path_of_run"]


class Link(msgspec.Struct, frozen=True):
    """A piece of a critical path."""

    start_ns: int
    end_ns: int
    """On the clock that all ranks share."""
    kind: str
    """One of :data:`LinkKind`."""
    rank: int | None
    """None for a transfer, which is of all ranks."""
    name: str
    operator: str


LinkKind = ("compute", "memory", "transfer", "host", "launch", "stream", "wait", "absent_ranks")
"""What a piece of the path is: work of a device, a collective's transfer, the host's calls and pauses, the latency of
launches, gaps between kernels of a stream, returns of waits, and the arrival of ranks that were not recorded."""

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
    """Index into :data:`LinkKind`."""
    task: Int64
    """The task that the piece is of, or leads to."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def by_kind(self) -> dict[str, int]:
        """Return the ns of each kind, in the order of :data:`LinkKind`."""
        total = np.bincount(self.kind, self.end_ns - self.start_ns, len(LinkKind))
        return {kind: round(ns) for kind, ns in zip(LinkKind, total.tolist(), strict=True)}


def links_of(model: Model, times: Times, chain: Chain, since_ns: int, until_ns: int) -> Links:
    """Cut a chain into pieces: from *since_ns* to *until_ns*, without gap or overlap.

    A task's piece lasts from its start to its end, or to the start of what waits for its start; the piece before it
    is the lag of its edge. Where a lag is negative, the piece that it runs into is shorter.
    """
    graph = model.graph
    task, edge = chain.task[::-1], chain.edge[::-1]
    kinds = np.array([LinkKind.index(_OF_TASK.get(TaskKind(k), "host")) for k in range(len(TaskKind))], np.uint8)
    lags = np.array([LinkKind.index(_OF_EDGE.get(EdgeKind(k), "wait")) for k in range(len(EdgeKind))], np.uint8)
    # Each task ends its lag's piece at its start, and its own piece where the next task's lag begins:
    # lag → start of a │ a → where the lag to b begins │ lag → start of b │ b …
    start = times.start_ns[task]
    leaves = np.append(np.where(graph.edge.from_end[edge[1:]], times.end_ns[task[:-1]], start[:-1]), until_ns)
    bounds = np.empty(2 * len(task) + 1, np.int64)
    bounds[0], bounds[1::2], bounds[2::2] = since_ns, start, leaves
    bounds = np.maximum.accumulate(np.clip(bounds, since_ns, until_ns))
    bounds[-1] = until_ns
    kind = np.empty(2 * len(task), np.uint8)
    kind[0::2] = np.where(edge >= 0, lags[graph.edge.kind[edge]], kinds[graph.kind[task]])
    kind[1::2] = kinds[graph.kind[task]]
    links = Links(bounds[:-1], bounds[1:], kind, np.repeat(task, 2))
    kept = links.end_ns > links.start_ns
    return Links(*(getattr(links, name)[kept] for name in Links.__struct_fields__))


def path_of_run(model: Model, times: Times) -> Links:
    """Return the critical path of the whole recording: to the end of the last task of any step."""
    placed = [model.over[tasks[tasks >= 0]] for _, tasks in model.place]
    last_tasks = np.concatenate([*placed, *(process.mark_tasks for process in model.processes)])
    last = int(last_tasks[times.end_ns[last_tasks].argmax()])
    chain = chain_to(model.graph, binding_edges(model.graph, times), last, times)
    return links_of(model, times, chain, int(times.start_ns[chain.task[-1]]), int(times.end_ns[last]))
