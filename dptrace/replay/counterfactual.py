"""Which change of a run takes a finding away: a counterfactual for each kind, or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.compute_findings.context import ComputeContext
from dptrace.analysis.compute_findings.detect import slowdown_ns
from dptrace.analysis.compute_findings.roofline import (
    PRODUCT_KINDS,
    attention_savings_ns,
    product_savings_ns,
    removed_by_fusion,
)
from dptrace.analysis.findings.communication import compared_messages
from dptrace.analysis.findings.evidence import ExposedComm, LowBandwidth, PageableCopies, SlowGpu, SmallMessages
from dptrace.analysis.findings.finding import Finding
from dptrace.analysis.findings.host import HOST_CAUSES, pauses
from dptrace.analysis.per_gpu.causes import IDLE_CAUSES
from dptrace.core.intervals import Int64, IntervalSet, median, subtract
from dptrace.errors import DptraceError
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import TaskKind
from dptrace.replay.representatives import numbers_in_part
from dptrace.replay.transforms.change import (
    Change,
    HiddenCollectives,
    NoStreamGaps,
    NoStreamWaits,
    ShorterTasks,
    ShorterTransfers,
    host_time,
)
from dptrace.replay.transforms.launches import CudaGraphs, NoRecompute, WithoutTasks
from dptrace.replay.transforms.schedule import Reschedule
from dptrace.run.kernels import CallsOf
from dptrace.run.run import Run
from dptrace.timeline.model import Kind, Timeline

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
        return ComputeContext(tuple(own), CallsOf(run, own))

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


def transfers_of(model: Model, instances: Int64) -> tuple[Int64, Int64]:
    """Return the transfers of matched collectives of the whole run: places in *instances*, and tasks."""
    matches = model.run.cross_rank.matches
    place = np.full(len(matches) + 1, -1, np.int64)
    own = instances if model.of is None else numbers_in_part(model.of)[instances]
    place[own[own >= 0]] = np.flatnonzero(own >= 0)
    places, tasks = [], []
    for number, (timeline, members) in enumerate(zip(model.run.timelines, matches.of_device, strict=True)):
        members = members[place[matches.instance[members]] >= 0]
        own = model.place[number][1][timeline.kind == Kind.COMMUNICATION][matches.index[members]]
        places.append(place[matches.instance[members]][own >= 0])
        tasks.append(model.over[own[own >= 0]])
    task, first = np.unique(np.concatenate(tasks), return_index=True)
    return np.concatenate(places)[first], task


# Counterfactuals of the findings on compute: kernels that are faster, fused, or launched together.


def _faster_products(finding: Finding, context: GainContext) -> Change | str:
    return _shorter(
        "these products at 60 % of the roofline", product_savings_ns(context.compute, finding.kind), context
    )


def _shorter(what: str, less: NDArray[np.float64] | Int64, context: GainContext) -> Change:
    known = context.tasks >= 0
    return ShorterTasks(what, context.tasks[known], np.rint(less[known]).astype(np.int64))


def _fused(in_optimizer: bool, finding: Finding, context: GainContext) -> Change | str:
    tasks = context.tasks[removed_by_fusion(context.compute, in_optimizer)]
    gone = np.zeros(len(context.model.graph), np.bool_)
    gone[tasks[tasks >= 0]] = True
    return WithoutTasks("each chain one kernel", gone)


def _as_fast_as_others(finding: Finding, context: GainContext) -> Change | str:
    """Return the change by which the GPU of one rank computes as fast as those of the others."""
    evidence = finding.about(SlowGpu)
    rank, slower = evidence.rank, 1 - 1 / evidence.ratio
    placed = zip(context.model.run.timelines, context.model.place, strict=True)
    own = [tasks for timeline, (_, tasks) in placed if timeline.rank == rank]
    if not own:
        return f"Rank {rank} is not replayed: another stands for it."
    task = np.concatenate(own)
    task = task[task >= 0]
    task = task[context.model.graph.of(TaskKind.COMPUTE)[task]]
    less = np.rint(context.model.graph.duration_ns[task] * slower).astype(np.int64)
    return ShorterTasks(f"the GPU of rank {rank} as fast as the others", task, less)


def _no_pageable_copies(finding: Finding, context: GainContext) -> Change | str:
    graph, copies = context.model.graph, finding.about(PageableCopies).copies
    named = np.array([name in copies for name in graph.names], np.bool_)
    task = np.flatnonzero(graph.of(TaskKind.MEMORY) & named[graph.name])
    return ShorterTasks("no time in these copies", task, graph.duration_ns[task])


# Counterfactuals of findings on messages: transfers at the rate, latency or length that others have.

_GONE = "The whole run does not have these messages."


def _faster_links(finding: Finding, context: GainContext) -> Change | str:
    """Let the messages of a finding on low bandwidth be as fast as what they are compared with."""
    model, evidence = context.model, finding.about(LowBandwidth)
    across, rate = model.whole.cross_rank, evidence.reference_gbps * 1e9
    rows = compared_messages(evidence, across, model.run.metadata)
    left = np.minimum(across.timing.busbw[rows] / rate, 1)
    return _shorter_messages(
        model, f"large {evidence.collective} at {rate / 1e9:.3g} GB/s", rows, 1 - left, proportional=True
    )


def _fewer_messages(finding: Finding, context: GainContext) -> Change | str:
    """Let small messages pay the latency as often as the messages that they could be combined to."""
    matches, evidence = context.model.whole.cross_rank.matches, finding.about(SmallMessages)
    group = np.array([one.name == evidence.group for one in matches.groups] + [False], np.bool_)
    rows = (matches.kind == evidence.collective) & group[matches.group] & matches.complete & (matches.step != "")
    rows &= (matches.bytes > 0) & (matches.bytes < evidence.crossover_bytes)
    wanted = max(int(np.ceil(evidence.bytes / evidence.crossover_bytes)), 1)
    saved = evidence.alpha_ns * max(1 - wanted / evidence.count, 0)
    text = f"small {evidence.collective} combined to {wanted} a step"
    chosen = np.flatnonzero(rows)
    return _shorter_messages(context.model, text, chosen, np.full(len(chosen), saved))


def _usual_transfers(finding: Finding, context: GainContext) -> Change | str:
    """Let collectives that took far longer than comparable ones take their median."""
    model, rows = context.model, [np.empty(0, np.int64)]
    excess: list[NDArray[Any]] = [np.empty(0)]
    for latency in model.whole.cross_rank.latencies:
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
    return ShorterTransfers(what, task, np.rint(less).astype(np.int64))


# Counterfactuals of findings on hosts, communication and idle time.


def _without_host_time(
    what: str, when: Callable[[Timeline], IntervalSet], waits: bool, finding: Finding, context: GainContext
) -> Change | str:
    change = host_time(context.model, what, when, waits=waits)
    return change or "The trace does not show when hosts did that."


def _busy(idle_cause: str, timeline: Timeline) -> IntervalSet:
    """Return when a host did what idle time of a cause comes from."""
    busy = subtract(timeline.host.intervals(*HOST_CAUSES[idle_cause]), timeline.data_loading)
    if idle_cause == "host_bound_ns":
        busy = subtract(subtract(busy, pauses(timeline)), timeline.launching)
    return busy


def _smaller_first_bucket(finding: Finding, context: GainContext) -> Change | str:
    change = Reschedule("ddp")
    change.apply(context.model)
    return change


def _no_copies(finding: Finding, context: GainContext) -> Change | str:
    graph = context.model.graph
    task = np.flatnonzero(graph.of(TaskKind.MEMORY))
    return ShorterTasks("no time in copies", task, graph.duration_ns[task])


def _no_recompute(finding: Finding, context: GainContext) -> Change | str:
    try:
        NoRecompute().apply(context.model)
    except DptraceError:
        return "The operators do not show which kernels are repeated."
    return NoRecompute()


_LEFT_OUT = {
    "bubble": "A replay keeps the order of micro-batches and stages, which another schedule would change.",
}
"""Why no change takes a finding away."""
COUNTERFACTUALS: dict[str, Callable[[Finding, GainContext], Change | str]] = {
    "exposed_comm": lambda finding, context: HiddenCollectives(finding.about(ExposedComm).collective),
    "small_messages": _fewer_messages,
    "first_bucket": _smaller_first_bucket,
    "low_bandwidth": _faster_links,
    "slow_collectives": _usual_transfers,
    "data_loading": partial(_without_host_time, "the DataLoader always ready", lambda t: t.data_loading, False),
    **{
        cause.kind: partial(_without_host_time, cause.without, partial(_busy, cause.name), True)
        for cause in IDLE_CAUSES
        if cause.without
    },
    "unrecorded": partial(_without_host_time, "no time in these gaps", pauses, False),
    "host_bound": partial(_without_host_time, "no host time between launches", partial(_busy, "host_bound_ns"), False),
    "unused_parameters": partial(
        _without_host_time, "no search for unused parameters", lambda t: t.parameter_search, False
    ),
    "launching": partial(
        _without_host_time, "no launching call longer than launches take", lambda t: t.launching, False
    ),
    "launch_latency": lambda finding, context: NoStreamGaps(),
    "waiting": lambda finding, context: NoStreamWaits(),
    "copies": _no_copies,
    "recompute": _no_recompute,
    **dict.fromkeys(PRODUCT_KINDS, _faster_products),
    "unfused_attention": lambda finding, context: _shorter(
        "attention in one kernel", attention_savings_ns(context.compute), context
    ),
    "elementwise_chains": partial(_fused, False),
    "unfused_optimizer": partial(_fused, True),
    "short_kernels": lambda finding, context: CudaGraphs(),
    "slow_gpu": _as_fast_as_others,
    "interference": lambda finding, context: _shorter(
        "compute as fast as without communication", slowdown_ns(context.compute), context
    ),
    "pageable_copies": _no_pageable_copies,
    **{kind: lambda finding, context: _LEFT_OUT[finding.kind] for kind in _LEFT_OUT},
}
"""The run without a finding, by its kind, but for late ranks; docs/guides/whatif.md has a row for each."""


def counterfactual(finding: Finding, context: GainContext) -> Change | str:
    """Return the change of the run without a finding, or why there is none.

    Raises:
        DptraceError: the run does not have what would change, or a file can't be read again.
    """
    return COUNTERFACTUALS[finding.kind](finding, context)
