"""Device time that is taken out of a run: shorter kernels and transfers, hidden communication, waits of streams."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.simulation.changes import with_times
from dptrace.replay.simulation.simulate import NEVER
from dptrace.timeline.model import Kind

__all__ = ["HiddenCollectives", "NoStreamGaps", "NoStreamWaits", "ShorterTasks", "transfers_of"]


class ShorterTasks(msgspec.Struct, frozen=True, eq=False):
    """Some kernels, copies or transfers take less time."""

    what: str
    task: Int64
    less_ns: Int64
    """By how much each is shorter."""
    collectives: bool = False
    host: bool = False

    def describe(self) -> str:
        return self.what

    def apply(self, model: Model) -> Model:
        durations = model.graph.duration_ns.copy()
        durations[self.task] = np.maximum(durations[self.task] - self.less_ns, 0)
        return with_times(model, durations)


class HiddenCollectives(msgspec.Struct, frozen=True):
    """The transfers of a kind of collective run under compute, as far as links have the time; late ranks remain late.

    In the graph they take no time. What they take on the links bounds the step from below.
    """

    kind: str
    collectives: bool = True
    host: bool = False

    def describe(self) -> str:
        return f"every {self.kind} under compute"

    def apply(self, model: Model) -> Model:
        hidden = _collectives(model, self.kind) & model.graph.of(TaskKind.TRANSFER, TaskKind.COMMUNICATION)
        return with_times(model, np.where(hidden, 0, model.graph.duration_ns))

    def least_step_ns(self, model: Model) -> float:
        """Return how long the links of the busiest rank need for the messages of a step.

        It is 0 where ranks are missing, since what their collectives take may be waiting.
        """
        most = 0.0
        if self.lacks_ranks(model):
            return most
        for process in model.processes:
            own = np.unique(model.over[process.interval_tasks])
            own = own[model.graph.of(TaskKind.TRANSFER, TaskKind.COMMUNICATION)[own]]
            steps = max(1, len(process.mark_tasks) - 1)
            most = max(most, float(model.graph.duration_ns[own].sum()) / steps)
        return most

    def lacks_ranks(self, model: Model) -> bool:
        """Return whether ranks of these collectives were not recorded."""
        transfers = model.transfers
        return bool((transfers.absent & _collectives(model, self.kind)[transfers.task]).any())


def _collectives(model: Model, kind: str) -> NDArray[np.bool_]:
    """Return which tasks are collectives of a kind, or their transfers."""
    chosen = np.zeros(len(model.graph), np.bool_)
    for timeline, (_, tasks) in zip(model.run.timelines, model.place, strict=True):
        known = np.array([one.kind == kind for one in timeline.collectives] + [False], np.bool_)
        own = tasks[known[timeline.collective] & (tasks >= 0)]
        chosen[own] = chosen[model.over[own]] = True
    return chosen


def transfers_of(model: Model, instances: Int64) -> tuple[Int64, Int64]:
    """Return the transfers of matched collectives of the whole run: places in *instances*, and tasks."""
    matches = model.run.cross_rank.matches
    place = np.full(len(matches) + 1, -1, np.int64)
    place[instances] = np.arange(len(instances))
    places, tasks = [], []
    for number, timeline in enumerate(model.run.timelines):
        members = np.flatnonzero((matches.device == number) & (place[matches.instance] >= 0))
        own = model.place[number][1][timeline.kind == Kind.COMMUNICATION][matches.index[members]]
        places.append(place[matches.instance[members]][own >= 0])
        tasks.append(model.over[own[own >= 0]])
    task, first = np.unique(np.concatenate(tasks), return_index=True)
    return np.concatenate(places)[first], task


class NoStreamGaps(msgspec.Struct, frozen=True):
    """A kernel in a stream's queue starts when the one before it ends."""

    collectives: bool = False
    host: bool = False

    def describe(self) -> str:
        return "no gaps between queued kernels"

    def apply(self, model: Model) -> Model:
        edge = model.graph.edge
        return with_times(model, lag_ns=np.where(edge.of(EdgeKind.STREAM), np.minimum(edge.lag_ns, 0), edge.lag_ns))


class NoStreamWaits(msgspec.Struct, frozen=True):
    """No stream waits for another's kernels or copies; waits for collectives remain."""

    collectives: bool = False
    host: bool = False

    def describe(self) -> str:
        return "no stream waits for another's kernels or copies"

    def apply(self, model: Model) -> Model:
        graph, edge = model.graph, model.graph.edge
        work = graph.of(TaskKind.COMPUTE, TaskKind.MEMORY)
        waits = edge.of(EdgeKind.JOIN, EdgeKind.TIMED, EdgeKind.BUSY) & work[edge.src] & work[edge.dst]
        # A kernel of which nothing else is known would start at any time.
        others = np.bincount(edge.dst[~waits], minlength=len(graph))
        return with_times(model, lag_ns=np.where(waits & (others[edge.dst] > 0), NEVER, edge.lag_ns))
