"""What makes the compute of a run slower than it could be, most expensive first.

The findings on one run overlap where two causes share time: a small matrix product is far below the roofline, and also
a short kernel. Each cost is how much shorter a step would be without this cause alone, if compute set its length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.compute_findings.context import ComputeContext, StepKernels
from dptrace.analysis.compute_findings.roofline import (
    PRODUCT_KINDS,
    elementwise_chains,
    far_below_the_roofline,
    unfused_attention,
)
from dptrace.analysis.findings.evidence import Interference, PageableCopies, SlowGpu
from dptrace.analysis.findings.finding import MIN_SHARE, Finding
from dptrace.analysis.kernels.names import kernel_names
from dptrace.core.intervals import Int64, covered
from dptrace.core.units import duration, share
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.timeline.model import Kind, Phase, Timeline

# Copies between pageable host memory and the GPU, which block the host and run below the link's speed.


_PAGEABLE = re.compile(r"memcpy.*\bpageable\b", re.IGNORECASE)
_ADVICE = (
    "Put the data in pinned memory (pin_memory=True in the DataLoader) and copy with non_blocking=True; keep what the "
    "step reads back on the GPU until it is logged."
)


def pageable_copies(context: ComputeContext) -> list[Finding]:
    """Find the time of such copies that no compute hides."""
    exposed, count, named = 0, 0, list[str]()
    for timeline, busy in zip(context.timelines, context.compute, strict=True):
        pageable = np.fromiter((_PAGEABLE.search(name) is not None for name in timeline.names), np.bool_)
        rows = np.flatnonzero((timeline.kind == Kind.MEMORY) & (timeline.step >= 0))
        rows = rows[pageable[timeline.name[rows]]] if len(rows) else rows
        start, end = timeline.start_ns[rows], timeline.end_ns[rows]
        exposed += int((end - start - (covered(busy, end) - covered(busy, start))).sum())
        count += len(rows)
        named += [timeline.names[name] for name in np.unique(timeline.name[rows]).tolist()]
    if not count:
        return []
    text = (
        f"{context.per_step(count):,.0f} copies per step between the GPU and pageable memory take "
        f"{duration(context.per_step(exposed))} that no compute hides, and block the host"
    )
    return [context.finding("pageable_copies", text, _ADVICE, exposed, PageableCopies(copies=sorted(set(named))))]


# The price of activation checkpointing: forward work that backward repeats.

_RECOMPUTE_ADVICE = (
    "It saves memory. If memory is left, checkpoint fewer blocks, or only what is cheap to repeat (selective "
    "checkpointing keeps matrix products and attention)."
)


def recompute(context: ComputeContext) -> list[Finding]:
    """Find forward work that is computed again in backward."""
    kernels = context.kernels
    again = int(kernels.ns[kernels.recompute].sum())
    backward = int(kernels.ns[kernels.phase == Phase.BACKWARD].sum())
    if not again or not backward:
        return []
    text = (
        f"Backward repeats forward work for {duration(context.per_step(again))} per step, "
        f"{share(again / backward)} of its compute"
    )
    return [context.finding("recompute", text, _RECOMPUTE_ADVICE, again)]


# Kernels so short that the GPU is idle between them, since each launch takes longer than the kernel.

_SHORT_NS = 10_000
"""Length below which a launch from Python, some 5 to 10 µs, takes longer than the kernel."""
_LONGEST_GAP_NS = 100_000
"""Idle time beyond it is not a launch's: the host waited, loaded data or ran Python."""
_SHORT_KERNELS_ADVICE = (
    "Launch several at once: capture the step in CUDA graphs ({}, torch.cuda.make_graphed_callables), {}or use fused "
    "or foreach optimizers."
)


def short_kernels(context: ComputeContext) -> list[Finding]:
    """Find idle time between two short kernels."""
    idle = short = kernels = 0
    for timeline in context.timelines:
        gap, ns, inside = _gaps(timeline)
        is_short = ns < _SHORT_NS
        between = inside & is_short & np.append(False, is_short[:-1]) & (gap < _LONGEST_GAP_NS)
        idle += int(gap[between].sum())
        short += int((inside & is_short).sum())
        kernels += int(inside.sum())
    if not idle:
        return []
    text = (
        f"{context.per_step(short):,.0f} kernels per step are shorter than {duration(_SHORT_NS)} "
        f"({share(short / kernels)} of all), and the GPU is idle for {duration(context.per_step(idle))} between them"
    )
    graphs = ("torch.compile(mode='reduce-overhead')", "fuse them (torch.compile), ")
    advice = _SHORT_KERNELS_ADVICE.format(*(("mode='reduce-overhead'", "") if context.is_compiled else graphs))
    return [context.finding("short_kernels", text, advice, idle)]


def _gaps(timeline: Timeline) -> tuple[Int64, Int64, Int64]:
    """Return for each interval by start: idle time before it, its length, and whether it is compute within a step.

    Idle is what lies between a start and the latest end of all that began before::

        intervals [0, 4) [2, 9) [12, 13) → idle 0, 0, 3
    """
    order = np.argsort(timeline.start_ns, kind="stable")
    start, end = timeline.start_ns[order], timeline.end_ns[order]
    reach = np.append(start[:1], np.maximum.accumulate(end)[:-1])
    inside = (timeline.kind[order] == Kind.COMPUTE) & (timeline.step[order] >= 0)
    return np.maximum(start - reach, 0), end - start, inside


# Ranks whose GPU takes longer for the same kernels than the others' GPUs.

_MIN_RATIO = 1.03
"""Slowness below which GPUs of one kind differ anyway."""
_UNEVEN_RANKS_ADVICE = (
    "Look at this GPU's clocks, power limit and temperature (nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE), "
    "and at what else runs on it; replace it if it stays slow."
)


def uneven_ranks(context: ComputeContext) -> list[Finding]:
    """Find the rank with the slowest kernels, where all ranks run the same ones equally often."""
    kernels, devices = context.kernels, len(context.timelines)
    if devices < 2:
        return []
    count = np.zeros((len(kernels.work), devices), np.int64)
    total = np.zeros_like(count)
    np.add.at(count, (kernels.index, kernels.device), 1)
    np.add.at(total, (kernels.index, kernels.device), kernels.ns)
    steps = np.array([len(timeline.windows) for timeline in context.timelines])
    # Ranks may have recorded different numbers of steps: what counts is how often a step runs a kernel.
    same = (count * steps[0] == count[:, :1] * steps).all(1) & (count > 0).all(1)
    if not same.any():
        return []
    per_step = total[same] / steps
    own = per_step.sum(0)
    slowest = int(own.argmax())
    others = np.median(np.delete(per_step, slowest, 1), 1)
    ratio = own[slowest] / others.sum()
    if ratio < _MIN_RATIO:
        return []
    excess = per_step[:, slowest] - others
    worst = int(excess.argmax())
    timeline = context.timelines[slowest]
    name = kernel_names(context.timelines)[kernels.work[int(np.flatnonzero(same)[worst])].kernel]
    text = (
        f"The GPU of rank {timeline.rank} takes {(ratio - 1) * 100:.0f} % longer than the others for the same kernels: "
        f"{duration(excess.sum())} per step, most of it in {name} "
        f"({duration(per_step[worst, slowest])} against {duration(others[worst])})"
    )
    evidence = SlowGpu(rank=timeline.rank, ratio=round(float(ratio), 4), kernel=name)
    return [context.finding("slow_gpu", text, _UNEVEN_RANKS_ADVICE, excess.sum() * context.steps, evidence)]


# Compute that is slower while communication runs, measured on kernels that ran both ways.

_OVERLAPPED = 0.9
"""Share of a kernel under communication from which it counts as overlapped."""
_MIN_KERNELS = 4
"""Kernels of one kind that must have run each way."""
_MAX_SPREAD = 1.5
"""Ratio of the 90th to the 10th percentile without communication beyond which kernels of one name do unequal work."""
_MIN_COMPARED = 0.2
"""Share of the overlapped compute that must be comparable."""
_INTERFERENCE_ADVICE = (
    "Communication kernels take multiprocessors and memory bandwidth from compute. Try fewer channels "
    "(NCCL_MAX_NCHANNELS, NCCL_NTHREADS), collectives by copy engines or in the switch (NVLink SHARP), or launch the "
    "communication where compute does not need them."
)


def interference(context: ComputeContext) -> list[Finding]:
    """Find how much longer kernels take under communication than without it."""
    kernels = context.kernels
    if not len(kernels):
        return []
    overlapped, usual = _compared(context)
    compared = overlapped & (usual > 0)
    ns = kernels.ns
    now, alone = int(ns[compared].sum()), float(usual[compared].sum())
    if not alone or now < _MIN_COMPARED * int(ns[overlapped].sum()):
        return []
    cost = now - alone
    text = (
        f"Compute takes {now / alone:.2f} times as long while communication runs: {duration(context.per_step(now))} "
        f"per step instead of {duration(context.per_step(alone))}, over the {share(now / int(ns[overlapped].sum()))} "
        "of overlapped compute whose kernels also ran without communication"
    )
    return [
        context.finding("interference", text, _INTERFERENCE_ADVICE, cost, Interference(ratio=round(now / alone, 4)))
    ]


def slowdown_ns(context: ComputeContext) -> Int64:
    """Return by how many ns each kernel under communication is longer than it usually is without."""
    overlapped, usual = _compared(context)
    return np.where(overlapped & (usual > 0), context.kernels.ns - usual, 0)


def _compared(context: ComputeContext) -> tuple[NDArray[np.bool_], Int64]:
    """Return which kernels run under communication, and what each takes without; 0 where that is unknown."""
    under = _share_under_communication(context, context.kernels)
    overlapped, free = under >= _OVERLAPPED, under == 0
    return overlapped, _usual_ns(context.kernels, overlapped, free)


def _share_under_communication(context: ComputeContext, kernels: StepKernels) -> NDArray[np.float64]:
    under = np.zeros(len(kernels))
    for device, communication in enumerate(context.communication):
        own = kernels.device == device
        start, end = kernels.start_ns[own], kernels.end_ns[own]
        under[own] = (covered(communication, end) - covered(communication, start)) / np.maximum(end - start, 1)
    return under


def _usual_ns(kernels: StepKernels, overlapped: NDArray[np.bool_], free: NDArray[np.bool_]) -> Int64:
    """Return for each kernel the median time of its kind without communication; 0 where too few ran each way.

    A kind is the same work in the same phase. Without recorded shapes, kernels of one name may do unequal work, and
    GPUs may differ: kinds whose times vary without any communication are left out.
    """
    distinct, kind = np.unique(kernels.index * len(Phase) + kernels.phase, return_inverse=True)
    kind, kinds, ns = kind.reshape(-1), len(distinct), kernels.ns
    enough = np.minimum(*(np.bincount(kind[chosen], minlength=kinds) for chosen in (overlapped, free))) >= _MIN_KERNELS
    rows = np.flatnonzero(free & enough[kind])
    rows = rows[np.lexsort((ns[rows], kind[rows]))]
    edges = np.searchsorted(kind[rows], np.arange(kinds + 1))
    count, some = np.diff(edges), np.flatnonzero(enough)
    # Those of one kind stand together, ascending, so that a quantile is a place among them.
    low, middle, high = (ns[rows[edges[some] + (count[some] - 1) * percent // 100]] for percent in (10, 50, 90))
    usual = np.zeros(kinds, np.int64)
    usual[some] = np.where(high <= _MAX_SPREAD * low, middle, 0)
    return usual[kind]


DETECTORS: dict[Callable[[ComputeContext], list[Finding]], tuple[str, ...]] = {
    unfused_attention: ("unfused_attention",),
    far_below_the_roofline: PRODUCT_KINDS,
    elementwise_chains: ("elementwise_chains", "unfused_optimizer"),
    short_kernels: ("short_kernels",),
    uneven_ranks: ("slow_gpu",),
    interference: ("interference",),
    recompute: ("recompute",),
    pageable_copies: ("pageable_copies",),
}
"""Each detector with the kinds that it finds."""


def compute_findings(timelines: Sequence[Timeline], calls: Iterable[OperatorCalls]) -> tuple[Finding, ...]:
    """Return the findings that cost at least one percent of a step.

    Args:
        timelines: the devices of a run.
        calls: the calls of each one's rank, in the same order; empty ones allow fewer findings.
    """
    chosen = [len(timeline.windows) > 0 and not timeline.on_cpu for timeline in timelines]
    if not any(chosen):
        return ()
    context = ComputeContext(tuple(compress(timelines, chosen)), compress(calls, chosen))
    found = [finding for detector in DETECTORS for finding in detector(context)]
    return tuple(sorted((f for f in found if f.share >= MIN_SHARE), key=lambda finding: -finding.counted_ns))
