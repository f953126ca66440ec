"""Which change of a run takes a finding away: a counterfactual for each kind, or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.compute_findings.context import ComputeContext
from dptrace.analysis.compute_findings.detect import slowdown_ns
from dptrace.analysis.compute_findings.roofline import attention_savings_ns, product_savings_ns, removed_by_fusion
from dptrace.analysis.findings.communication import compared_messages
from dptrace.analysis.findings.finding import Finding
from dptrace.analysis.findings.host import HOST_CAUSES
from dptrace.core.intervals import Int64, IntervalSet, covered, median, subtract
from dptrace.errors import DptraceError
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind, TaskKind
from dptrace.replay.graph.process import Process
from dptrace.replay.graph.tasks import HostPieces, host_pieces
from dptrace.replay.simulation import NEVER, Change, with_times
from dptrace.replay.transforms.launches import CudaGraphs, NoRecompute, without_tasks
from dptrace.replay.transforms.schedule import Reschedule
from dptrace.run.kernels import operator_calls_of
from dptrace.run.run import Run
from dptrace.timeline.model import Kind, Timeline

__all__ = [
    "GainContext",
    "HiddenCollectives",
    "HostTime",
    "NoStreamGaps",
    "NoStreamWaits",
    "ShorterTasks",
    "counterfactual",
    "faster_links",
    "fewer_messages",
    "host_time",
    "kernel_change",
    "transfers_of",
    "usual_transfers",
]


# What counterfactuals are made of: the run that findings are about, its model, and its kernels with their work.


class GainContext:
    """A run and its model; findings on compute are about the kernels of the whole run."""

    def __init__(self, run: Run, model: Model) -> None:
        self.run = run
        """The run that the findings are about."""
        self.model = model
        """That of the whole run."""

    @cached_property
    def compute(self) -> ComputeContext:
        """The kernels of the whole run, as the findings on compute see them.

        Raises:
            DptraceError: a file can't be read again.
        """
        run = self.model.run
        own = [run.timelines[number] for number in self._devices]
        return ComputeContext(tuple(own), tuple(operator_calls_of(run, timeline) for timeline in own))

    @cached_property
    def tasks(self) -> Int64:
        """Task of each of these kernels, or -1."""
        parts = [np.empty(0, np.int64)]
        for number in self._devices:
            timeline = self.model.run.timelines[number]
            chosen = (timeline.kind == Kind.COMPUTE) & (timeline.step >= 0)
            parts.append(self.model.place[number][1][chosen])
        return np.concatenate(parts)

    @property
    def _devices(self) -> list[int]:
        """Number of each GPU with steps."""
        timelines = self.model.run.timelines
        return [number for number, one in enumerate(timelines) if len(one.windows) and not one.on_cpu]


# Device time that is taken out of a run: shorter kernels and transfers, hidden communication, waits of streams.


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
        return f"no time in transfers of {self.kind}"

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


# Host time that is taken out of a run: what hosts spend on one thing.


_MOSTLY = 0.5
"""Share of a blocking call from which it counts as what it overlaps."""


class HostTime(msgspec.Struct, frozen=True, eq=False):
    """What hosts do at some times takes no time."""

    what: str
    when: tuple[IntervalSet, ...]
    """Of each process, on the shared clock."""
    waits: bool = False
    """Whether calls at these times wait for nothing, either."""
    collectives: bool = False
    host: bool = True

    def describe(self) -> str:
        return self.what

    def apply(self, model: Model) -> Model:
        durations, lags = model.graph.duration_ns.copy(), model.graph.edge.lag_ns.copy()
        for process, when in zip(model.processes, self.when, strict=True):
            pieces = host_pieces(model, process)
            pieces.cut(np.minimum(_within(when, pieces), pieces.length_ns), durations, lags)
            if self.waits:
                lags[_waits_of(model, process, when)] = NEVER
        return with_times(model, durations, lags)


def host_time(
    model: Model, what: str, when: Callable[[Timeline], IntervalSet], *, waits: bool = False
) -> HostTime | None:
    """Take out of a model what *when* gives on the clock of each process's first timeline; None if that is nothing."""
    clocks = model.run.cross_rank.clocks
    times: list[IntervalSet] = []
    for process in model.processes:
        number = process.timelines[0][0]
        start, end = when(model.run.timelines[number])
        times.append((clocks.align(number, start), clocks.align(number, end)))
    return HostTime(what, tuple(times), waits) if any(len(start) for start, _ in times) else None


def _within(when: IntervalSet, pieces: HostPieces) -> Int64:
    """Return how much of each piece is at these times."""
    inside: Int64 = covered(when, pieces.end_ns) - covered(when, pieces.start_ns)
    return inside


def _waits_of(model: Model, process: Process, when: IntervalSet) -> Int64:
    """Return the edges by which blocking calls at these times wait for the device."""
    graph, host, event = model.graph, process.host, process.blocking.event
    start, end = host.start_ns[event], host.end_ns[event]
    inside = covered(when, end) - covered(when, start) > _MOSTLY * (end - start)
    returns = np.zeros(len(graph), np.bool_)
    returns[process.host_tasks.finish[event[inside]]] = True
    return np.flatnonzero(graph.edge.of(EdgeKind.SYNCHRONIZE, EdgeKind.QUEUE) & returns[graph.edge.dst])


# Counterfactuals of the findings on compute: kernels that are faster, fused, or launched together.


def kernel_change(finding: Finding, context: GainContext) -> Change | str:
    """Return the change that takes a finding on compute away, or why there is none.

    Raises:
        DptraceError: a file can't be read again.
    """
    make = _CHANGES.get(finding.kind)
    return make(finding, context) if make else "No change that a replay can make removes this."


class _Fused(msgspec.Struct, frozen=True, eq=False):
    """Some kernels are part of their neighbors: they and their launches take no time."""

    what: str
    gone: NDArray[np.bool_]
    """Of each task."""
    collectives: bool = False
    host: bool = True

    def describe(self) -> str:
        return self.what

    def apply(self, model: Model) -> Model:
        return without_tasks(model, self.gone)


def _graphs(finding: Finding, context: GainContext) -> Change | str:
    return CudaGraphs()


def _faster_products(finding: Finding, context: GainContext) -> Change | str:
    return _shorter(
        "these products at 60 % of the roofline", product_savings_ns(context.compute, finding.kind), context
    )


def _fused_attention(finding: Finding, context: GainContext) -> Change | str:
    return _shorter("attention in one kernel", attention_savings_ns(context.compute), context)


def _alone(finding: Finding, context: GainContext) -> Change | str:
    return _shorter("compute as fast as without communication", slowdown_ns(context.compute), context)


def _shorter(what: str, less: NDArray[np.float64] | Int64, context: GainContext) -> Change:
    known = context.tasks >= 0
    return ShorterTasks(what, context.tasks[known], np.rint(less[known]).astype(np.int64))


def _fused(in_optimizer: bool, finding: Finding, context: GainContext) -> Change | str:
    tasks = context.tasks[removed_by_fusion(context.compute, in_optimizer)]
    gone = np.zeros(len(context.model.graph), np.bool_)
    gone[tasks[tasks >= 0]] = True
    return _Fused("each chain one kernel", gone)


def _as_fast_as_others(finding: Finding, context: GainContext) -> Change | str:
    """Return the change by which the GPU of one rank computes as fast as those of the others."""
    rank, slower = finding.evidence["rank"], 1 - 1 / finding.evidence["ratio"]
    placed = zip(context.model.run.timelines, context.model.place, strict=True)
    own = [tasks for timeline, (_, tasks) in placed if timeline.rank == rank]
    task = np.concatenate(own)
    task = task[task >= 0]
    task = task[context.model.graph.of(TaskKind.COMPUTE)[task]]
    less = np.rint(context.model.graph.duration_ns[task] * slower).astype(np.int64)
    return ShorterTasks(f"the GPU of rank {rank} as fast as the others", task, less)


def _no_pageable_copies(finding: Finding, context: GainContext) -> Change | str:
    graph = context.model.graph
    named = np.array([name in finding.evidence["copies"] for name in graph.names], np.bool_)
    task = np.flatnonzero(graph.of(TaskKind.MEMORY) & named[graph.name])
    return ShorterTasks("no time in these copies", task, graph.duration_ns[task])


_PRODUCTS = (
    *("fp32_products", "misaligned_products", "small_products"),
    *("slow_attention", "slow_convolutions", "slow_products"),
)
_CHANGES: dict[str, Callable[[Finding, GainContext], Change | str]] = {
    **dict.fromkeys(_PRODUCTS, _faster_products),
    "unfused_attention": _fused_attention,
    "elementwise_chains": partial(_fused, False),
    "unfused_optimizer": partial(_fused, True),
    "short_kernels": _graphs,
    "slow_gpu": _as_fast_as_others,
    "interference": _alone,
    "pageable_copies": _no_pageable_copies,
}


# Counterfactuals of findings on messages: transfers at the rate, latency or length that others have.


_GONE = "The whole run does not have these messages."


def faster_links(finding: Finding, model: Model) -> Change | str:
    """Let the messages of a finding on low bandwidth be as fast as what they are compared with."""
    across, rate = model.run.cross_rank, float(finding.evidence["reference_gbps"]) * 1e9
    rows = compared_messages(finding.evidence, across.matches, across.fits, across.timing, model.run.metadata)
    left = np.minimum(across.timing.busbw[rows] / rate, 1)
    kind = finding.evidence["collective"]
    return _shorter_messages(model, f"large {kind} at {rate / 1e9:.3g} GB/s", rows, 1 - left, proportional=True)


def fewer_messages(finding: Finding, model: Model) -> Change | str:
    """Let small messages pay the latency as often as the messages that they could be combined to."""
    matches, evidence = model.run.cross_rank.matches, finding.evidence
    group = np.array([one.name == evidence["group"] for one in matches.groups] + [False], np.bool_)
    rows = (matches.kind == evidence["collective"]) & group[matches.group] & matches.complete & (matches.step != "")
    rows &= (matches.bytes > 0) & (matches.bytes < evidence["crossover_bytes"])
    wanted = max(int(np.ceil(evidence["bytes"] / evidence["crossover_bytes"])), 1)
    saved = evidence["alpha_ns"] * max(1 - wanted / evidence["count"], 0)
    text = f"small {evidence['collective']} combined to {wanted} a step"
    chosen = np.flatnonzero(rows)
    return _shorter_messages(model, text, chosen, np.full(len(chosen), saved))


def usual_transfers(finding: Finding, model: Model) -> Change | str:
    """Let collectives that took far longer than comparable ones take their median."""
    rows: list[Int64] = [np.empty(0, np.int64)]
    excess: list[NDArray[Any]] = [np.empty(0)]
    for latency in model.run.cross_rank.latencies:
        if latency.kind == "send_recv" and model.run.pipelines:
            continue  # as in the finding: a stage without work waits in its messages
        rows.append(latency.instances[latency.slow])
        excess.append(latency.transfer_ns[latency.slow] - float(median(latency.transfer_ns)))
    return _shorter_messages(model, "no slow collective", np.concatenate(rows), np.concatenate(excess))


def _shorter_messages(
    model: Model, what: str, instances: Int64, less: NDArray[np.float64], *, proportional: bool = False
) -> Change | str:
    """Return the change that shortens transfers of matched collectives, by ns or by a share."""
    if not len(instances):
        return _GONE
    place, task = transfers_of(model, instances)
    less = less[place] * (model.graph.duration_ns[task] if proportional else 1)
    return ShorterTasks(what, task, np.rint(less).astype(np.int64), collectives=True)


_UNLEVEL_START = "The recordings begin at different points of the program: no step would be shorter."
_When = Callable[[Timeline], IntervalSet]


def counterfactual(finding: Finding, context: GainContext) -> Change | str:
    """Return the change of the run without a finding, or why there is none.

    Raises:
        DptraceError: the run does not have what would change.
    """
    if finding.kind == "straggler":
        return _UNLEVEL_START
    if finding.kind in _HOST:
        return _without_host_time(finding, context.model)
    if finding.kind in _OTHERS:
        return _OTHERS[finding.kind](finding, context.model)
    return kernel_change(finding, context)


class _HostTime(msgspec.Struct, frozen=True):
    """Host time that a finding is about."""

    what: str
    when: _When
    waits: bool = False


def _of(idle_cause: str) -> _When:
    return lambda timeline: subtract(timeline.host.intervals(*HOST_CAUSES[idle_cause]), timeline.data_loading)


_HOST = {
    "data_loading": _HostTime("the DataLoader always ready", lambda timeline: timeline.data_loading),
    "allocator": _HostTime("no time in calls that allocate or free", _of("allocator_ns"), waits=True),
    "synchronizing": _HostTime("no waits of hosts for their devices", _of("synchronizing_ns"), waits=True),
    "host_bound": _HostTime("no host time between launches", _of("host_bound_ns")),
    "unused_parameters": _HostTime("no search for unused parameters", lambda timeline: timeline.parameter_search),
}


def _without_host_time(finding: Finding, model: Model) -> Change | str:
    time = _HOST[finding.kind]
    change = host_time(model, time.what, time.when, waits=time.waits)
    return change or "The trace does not show when hosts did that."


def _hidden(finding: Finding, model: Model) -> Change | str:
    return HiddenCollectives(str(finding.evidence["collective"]))


def _smaller_first_bucket(finding: Finding, model: Model) -> Change | str:
    change = Reschedule("ddp")
    change.apply(model)
    return change


def _bubble(finding: Finding, model: Model) -> Change | str:
    return "A replay keeps the order of micro-batches and stages, which another schedule would change."


def _no_copies(finding: Finding, model: Model) -> Change | str:
    task = np.flatnonzero(model.graph.of(TaskKind.MEMORY))
    return ShorterTasks("no time in copies", task, model.graph.duration_ns[task])


def _no_recompute(finding: Finding, model: Model) -> Change | str:
    try:
        NoRecompute().apply(model)
    except DptraceError:
        return "The operators do not show which kernels are repeated."
    return NoRecompute()


_OTHERS: dict[str, Callable[[Finding, Model], Change | str]] = {
    "exposed_comm": _hidden,
    "first_bucket": _smaller_first_bucket,
    "small_messages": fewer_messages,
    "low_bandwidth": faster_links,
    "slow_collectives": usual_transfers,
    "launch_latency": lambda finding, model: NoStreamGaps(),
    "waiting": lambda finding, model: NoStreamWaits(),
    "bubble": _bubble,
    "copies": _no_copies,
    "recompute": _no_recompute,
}
