"""Several micro-steps for each step of the optimizer: forward and backward again, without all-reduce and optimizer."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, covered, union
from dptrace.errors import DptraceError
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.transforms.bucket_copies import copy_tasks
from dptrace.replay.transforms.launches import without_tasks
from dptrace.replay.transforms.schedule import RESUME_NS
from dptrace.timeline.model import Phase

__all__ = ["Accumulate"]

_LONGEST_PAUSE_NS = 1_000_000
_WAITING = 0.5
"""Share of a longer pause of the host under an all-reduce from which it is a wait for it."""


class Accumulate(msgspec.Struct, frozen=True):
    """Gradients of so many micro-steps are summed before they are reduced; each is as large as a recorded step.

    Applied to a model, it makes all of its steps micro-steps that are not the last.
    """

    micro_steps: int
    collectives: bool = True
    host: bool = True

    def describe(self) -> str:
        return f"{self.micro_steps} micro-steps for each step of the optimizer"

    def apply(self, model: Model) -> Model:
        graph, transfers = model.graph, model.transfers
        removed = np.zeros(len(graph), np.bool_)
        for timeline, (_, tasks) in zip(model.run.timelines, model.place, strict=True):
            removed[tasks[(timeline.phase == Phase.OPTIMIZER) & (tasks >= 0)]] = True
        if not removed.any():
            raise DptraceError(
                f"{model.run.path}: no work of the optimizer is known, which micro-steps leave out. Record with "
                "dptrace record, or give the optimizer's step its label (torch does)."
            )
        reduced = transfers.kind == "all_reduce"
        durations = graph.duration_ns.copy()
        durations[transfers.task[reduced]] = 0
        durations[copy_tasks(model)] = 0
        arrivals = transfers.arrival[reduced[transfers.instance]]
        removed[arrivals] = True
        removed &= graph.of(TaskKind.COMPUTE, TaskKind.MEMORY, TaskKind.ARRIVAL)
        return without_tasks(_unsynchronized(model, arrivals), removed, durations)


def _unsynchronized(model: Model, arrivals: Int64) -> Model:
    """Return the model with ranks that do not wait for each other, nor for these all-reduces."""
    graph, edge, over = model.graph, model.graph.edge, model.over
    ranks = int(graph.process.max(initial=0)) + 2
    # What waits for an all-reduce waits for its own rank's arrival: task and process in one number find it.
    key = over[arrivals] * ranks + graph.process[arrivals]
    order = np.argsort(key, kind="stable")
    wanted = edge.src * ranks + graph.process[edge.dst]
    place = np.minimum(np.searchsorted(key[order], wanted), len(key) - 1)
    if not len(key):
        return model
    own = (key[order][place] == wanted) & ~edge.of(EdgeKind.RENDEZVOUS)
    apart = replace(edge, src=np.where(own, arrivals[order][place], edge.src))
    lags = np.where(_waiting(model, arrivals), RESUME_NS, edge.lag_ns)
    over = model.over.copy()
    over[arrivals] = arrivals
    return replace(model, over=over).with_edges(replace(apart, lag_ns=lags))


def _waiting(model: Model, arrivals: Int64) -> NDArray[np.bool_]:
    """Return the edges whose pause of the host is a wait for the all-reduces of its rank."""
    graph, edge = model.graph, model.graph.edge
    pauses = edge.of(EdgeKind.HOST, EdgeKind.THREAD) & edge.from_end & (edge.lag_ns > _LONGEST_PAUSE_NS)
    for index in range(len(model.processes)):
        mine = arrivals[graph.process[arrivals] == index]
        reducing = union(graph.start_ns[mine], graph.end_ns[model.over[mine]])
        own = np.flatnonzero(pauses & (graph.process[edge.dst] == index))
        since, until = graph.end_ns[edge.src[own]], graph.start_ns[edge.dst[own]]
        under = covered(reducing, until) - covered(reducing, since)
        pauses[own[under < _WAITING * (until - since)]] = False
    return pauses
