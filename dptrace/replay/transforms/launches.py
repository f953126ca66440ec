"""Other launches in a what-if: kernels that become one, launches that become one graph, work that is not repeated."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, covered, members, union, unique
from dptrace.core.patterns import matches
from dptrace.core.units import plural
from dptrace.errors import DptraceError, UsageError
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.graph.process import Process
from dptrace.replay.simulation import with_times
from dptrace.replay.transforms.change import Change
from dptrace.replay.transforms.links import copy_tasks
from dptrace.replay.transforms.schedule import RESUME_NS
from dptrace.timeline.model import Phase


def without_tasks(model: Model, removed: NDArray[np.bool_], duration_ns: Int64 | None = None) -> Model:
    """Return a model in which these kernels take no time, nor do their launches and the gaps before them.

    Args:
        removed: of each task, whether it goes.
        duration_ns: durations of the other tasks, if they differ.
    """
    graph = model.graph
    durations = (graph.duration_ns if duration_ns is None else duration_ns).copy()
    gone = removed.copy()
    for process in model.processes:
        gone |= _launches(model, process, removed)
    durations[gone] = 0
    edge = graph.edge
    # A pause before an event within another is its place in that, not time of its own.
    before = edge.of(EdgeKind.HOST, EdgeKind.THREAD, EdgeKind.STREAM) & edge.from_end & gone[edge.dst]
    return with_times(model, durations, np.where(before, np.minimum(edge.lag_ns, 0), edge.lag_ns))


def _launches(model: Model, process: Process, removed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the calls all of whose kernels are removed."""
    calls = np.zeros(len(model.graph), np.bool_)
    by = process.device.launched_by
    goes = removed[process.interval_tasks]
    of_gone, of_kept = unique(by[goes & (by >= 0)]), unique(by[~goes & (by >= 0)])
    calls[process.host_tasks.begin[np.setdiff1d(of_gone, of_kept)]] = True
    return calls


class WithoutTasks(Change, frozen=True, eq=False):
    """Some kernels are part of their neighbors: they and their launches take no time."""

    what: str
    gone: NDArray[np.bool_]
    """Of each task."""
    host: ClassVar[bool] = True
    keeps_tasks: ClassVar[bool] = True

    def apply(self, model: Model) -> Model:
        return without_tasks(model, self.gone)


class Fuse(Change, frozen=True):
    """Neighboring kernels of a stream whose names match become one, which takes as long as the longest of them."""

    pattern: str
    host: ClassVar[bool] = True

    def describe(self) -> str:
        return f"kernels {self.pattern!r} fused"

    def apply(self, model: Model) -> Model:
        graph = model.graph
        first = self._first(model)
        joined = first != np.arange(len(graph))
        longest = graph.duration_ns.copy()
        np.maximum.at(longest, first[joined], graph.duration_ns[joined])
        return without_tasks(model, joined, longest)

    def _first(self, model: Model) -> Int64:
        """Return for each task the first of the kernels that it is fused with, or itself."""
        graph, edge = model.graph, model.graph.edge
        fits = np.array(matches(self.pattern, graph.names, "--fuse"), np.bool_)
        chosen = fits[graph.name] & graph.of(TaskKind.COMPUTE)
        order = EdgeKind.HOST if model.run.on_cpu else EdgeKind.STREAM
        pairs = edge.of(order) & edge.from_end & chosen[edge.src] & chosen[edge.dst]
        if not pairs.any():
            where = "thread" if model.run.on_cpu else "stream"
            raise UsageError(f"--fuse {self.pattern!r} fits no two neighboring kernels of a {where}.")
        first = np.arange(len(graph))
        src, dst = edge.src[pairs], edge.dst[pairs]
        in_time = np.argsort(graph.start_ns[dst], kind="stable")
        # Neighbors come in the order of time, so the first of each one's predecessor is known by then.
        for before, after in zip(src[in_time].tolist(), dst[in_time].tolist(), strict=True):
            first[after] = first[before]
        return first

    def doubts(self, model: Model) -> tuple[str, ...]:
        first = self._first(model)
        joined = first != np.arange(len(first))
        count, into = int(joined.sum()) + len(unique(first[joined])), len(unique(first[joined]))
        text = (
            f"{plural(count, 'kernel')} become {into:,}, each as long as its longest: as if reading and writing "
            "intermediate results were all that the others did. A trace does not show whether they can be fused."
        )
        return (text,)


class CudaGraphs(Change, frozen=True):
    """The kernels of a step are launched at once: their launches, and what the host does between them, take no time."""

    host: ClassVar[bool] = True
    keeps_tasks: ClassVar[bool] = True
    what = "CUDA graphs"

    def apply(self, model: Model) -> Model:
        if model.run.on_cpu:
            raise DptraceError(f"{model.run.path}: --cuda-graphs is about launches on a GPU, and the run is on a CPU.")
        graph = model.graph
        durations, lags, edge = graph.duration_ns.copy(), graph.edge.lag_ns.copy(), graph.edge
        within = np.zeros(len(graph), np.bool_)
        for process in model.processes:
            within[_later_launches(model, process)] = True
        durations[within] = 0
        before = edge.of(EdgeKind.HOST, EdgeKind.THREAD) & edge.from_end & within[edge.dst]
        lags[before] = np.minimum(lags[before], 0)
        return with_times(model, durations, lags)

    def doubts(self, model: Model) -> tuple[str, ...]:
        edge = model.graph.edge
        waits = int(edge.of(EdgeKind.SYNCHRONIZE, EdgeKind.HIDDEN).sum()) - sum(
            len(process.mark_tasks) for process in model.processes
        )
        if waits <= 0:
            return ()
        text = (
            f"Besides one wait per step, the host waits {waits:,} times for the device: each such wait ends a graph, "
            "and so does whatever depends on values (data loading, logging, scaling of gradients)."
        )
        return (text,)


def _later_launches(model: Model, process: Process) -> Int64:
    """Return the calls that launch kernels and copies, apart from the first of each step, which launches the graph."""
    device, host = process.device, process.host
    calls = unique(device.launched_by[device.launched_by >= 0])
    marks = host.start_ns[host.marks]
    step = np.searchsorted(marks, host.start_ns[calls], side="right")
    first = np.append(True, step[1:] != step[:-1])[: len(calls)]
    tasks: Int64 = process.host_tasks.begin[calls[~first]]
    # One that blocks ends its graph.
    whole: Int64 = tasks[process.host_tasks.finish[calls[~first]] == tasks]
    return whole


class NoRecompute(Change, frozen=True):
    """Backward computes nothing of forward again: activation checkpointing is off."""

    host: ClassVar[bool] = True
    keeps_tasks: ClassVar[bool] = True
    what = "no recomputation"

    def apply(self, model: Model) -> Model:
        removed = _repeated(model)
        if not removed.any():
            raise DptraceError(
                f"{model.run.path}: no forward work is repeated in backward, as far as operators show, so "
                "--no-recompute changes nothing."
            )
        return without_tasks(model, removed)

    def doubts(self, model: Model) -> tuple[str, ...]:
        return ("Without recomputation activations stay in memory: dptrace predict --memory shows whether they fit.",)


def _repeated(model: Model) -> NDArray[np.bool_]:
    removed = np.zeros(len(model.graph), np.bool_)
    for timeline, (_, tasks) in zip(model.run.timelines, model.place, strict=True):
        removed[tasks[timeline.recompute & (tasks >= 0)]] = True
    return removed & model.graph.of(TaskKind.COMPUTE)


# Several micro-steps for each step of the optimizer: forward and backward again, without all-reduce and optimizer.

_LONGEST_PAUSE_NS = 1_000_000
"""Longest pause of a host that is no wait for an all-reduce."""
_WAITING = 0.5
"""Share of a longer pause of the host under an all-reduce from which it is a wait for it."""


class Accumulate(Change, frozen=True):
    """Gradients of so many micro-steps are summed before they are reduced; each is as large as a recorded step.

    Applied to a model, it makes all of its steps micro-steps that are not the last.
    """

    micro_steps: int
    collectives: ClassVar[bool] = True
    transfers: ClassVar[bool] = True
    host: ClassVar[bool] = True

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
    paused, count = np.flatnonzero(pauses), len(model.processes)
    arriving, resuming = members(graph.process[arrivals], count), members(graph.process[edge.dst[paused]], count)
    for mine, own in zip((arrivals[at] for at in arriving), (paused[at] for at in resuming), strict=True):
        reducing = union(graph.start_ns[mine], graph.end_ns[model.over[mine]])
        since, until = graph.end_ns[edge.src[own]], graph.start_ns[edge.dst[own]]
        under = covered(reducing, until) - covered(reducing, since)
        pauses[own[under < _WAITING * (until - since)]] = False
    return pauses
