"""Findings from the figures of each GPU: idle time, copies, recompute, the search for unused parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from dptrace.analysis.findings.finding import (
    MIN_SHARE,
    PYTHON_ADVICE,
    SYNCHRONIZING_ADVICE,
    UNRECORDED_ADVICE,
    Claim,
    Finding,
    FindingContext,
    Unclaimed,
    allocator_advice,
)
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import Int64, median
from dptrace.core.units import duration
from dptrace.timeline.model import HostCause, HostLabel
from dptrace.timeline.steps import WHOLE_TRACE

# Name the longest idle gaps: where they are, and what the host did in them.


_EXAMINED = 20
"""Number of a device's longest gaps that are looked at."""
_NOTABLE = 0.1
"""Share of the idle time of a cause from which a gap is named."""
_COUNTED = 500
"""Number of a device's longest gaps that are added up."""
_STANDS_OUT = 0.15
_MIN_GAP_NS = 300_000
_MAX_NAMED = 2
HOST_CAUSES = {
    "data_loading_ns": (HostCause.DATA_LOADING,),
    "allocator_ns": (HostCause.ALLOCATOR,),
    "synchronizing_ns": (HostCause.SYNCHRONIZING,),
    "host_bound_ns": (HostCause.OPERATOR, HostCause.PYTHON, HostCause.NOTHING_RECORDED, HostCause.PASSIVE),
}
"""What the host did in idle time of a cause; causes without host activity are missing."""


class Gap(msgspec.Struct, frozen=True):
    """The part of an idle gap that one thing on the host filled."""

    ns: int
    step: str
    label: HostLabel


def longest_gaps(
    device: DeviceFigures, cause: str, total_ns: int, claimed: Sequence[tuple[int, int, int]] = ()
) -> list[Gap]:
    """Return the gaps of a cause that are a notable part of its idle time on a device, the longest first.

    Args:
        cause: one of ``idle.CAUSES``; causes without host activity have no gaps.
        total_ns: the idle time of the cause.
        claimed: starts and ends of segments, and how much of their idle time other findings explain, in ns.
    """
    if cause not in HOST_CAUSES:
        return []
    starts, ends = device.host_gaps
    least = max(_NOTABLE * total_ns, _MIN_GAP_NS)
    found = []
    for number in np.argsort(starts - ends, kind="stable")[:_EXAMINED].tolist():
        start, end = int(starts[number]), int(ends[number])
        if any(start < last and end > first and 2 * ns > end - start for first, last, ns in claimed):
            continue
        spent = device.timeline.host.spent(start, end)
        own = {label: ns for label, ns in spent.items() if label.cause in HOST_CAUSES[cause]}
        if own and sum(own.values()) >= least:
            label = max(own, key=lambda label: own[label])
            found.append(Gap(sum(own.values()), _step_at(device, start), label))
    return sorted(found, key=lambda gap: -gap.ns)[:_MAX_NAMED]


def main_activity(device: DeviceFigures, cause: str) -> str:
    """Return a clause on what the host did in most of the gaps of a cause; empty if nothing stands out."""
    if cause not in HOST_CAUSES:
        return ""
    starts, ends = device.host_gaps
    longest = np.argsort(starts - ends, kind="stable")[:_COUNTED]
    spent = Counter[HostLabel]()
    for start, end in zip(starts[longest].tolist(), ends[longest].tolist(), strict=True):
        for label, ns in device.timeline.host.spent(start, end).items():
            if label.cause in HOST_CAUSES[cause]:
                spent[label] += ns
    places = Counter[str]()
    for label, ns in spent.items():
        places[label.where or label.what] += ns
    if not places:
        return ""
    place, ns = places.most_common(1)[0]
    share = ns / spent.total()
    if not place or share < _STANDS_OUT:
        return ""
    most = next(label.what for label, _ in spent.most_common() if (label.where or label.what) == place)
    inner = f", most in “{most}”" if most and most != place else ""
    return f"{100 * share:.0f} % of the longer gaps are in “{place}”{inner}"


def _step_at(device: DeviceFigures, time: int) -> str:
    windows = device.timeline.windows
    place = int(np.searchsorted(windows.bounds, time, side="right")) - 1
    return windows.names[min(max(place, 0), len(windows) - 1)]


def gaps_text(gaps: Sequence[Gap], rank: int | None) -> str:
    """Return a clause on the longest gaps; empty without any.

    >>> gap = Gap(156_000_000, "ProfilerStep#4", HostLabel(HostCause.ALLOCATOR, "cudaMalloc", "forward"))
    >>> gaps_text([gap], 0)
    'the longest gap is 156.0 ms in ProfilerStep#4 on rank 0: “cudaMalloc” in “forward”'
    """
    if not gaps:
        return ""
    on = f" on rank {rank}" if rank is not None else ""
    if len(gaps) == 1:
        return f"the longest gap is {duration(gaps[0].ns)}{_in(gaps[0].step)}{on}: {_activity(gaps[0].label)}"
    first, second = gaps
    if (first.step, first.label) == (second.step, second.label):
        lengths = f"{duration(first.ns)} and {duration(second.ns)}"
        return f"the two longest gaps are {lengths}{_in(first.step)}{on}: {_activity(first.label)}"
    parts = (f"{duration(gap.ns)}{_in(gap.step)}, {_activity(gap.label)}" for gap in gaps)
    return f"the longest gaps{on} are {'; '.join(parts)}"


def _in(step: str) -> str:
    return "" if step == WHOLE_TRACE else f" in {step}"


def _activity(label: HostLabel) -> str:
    if label.cause == HostCause.NOTHING_RECORDED:
        return "nothing is recorded there"
    what = f"“{label.what}”" if label.what else "short operators"
    return f"{what} in “{label.where}”" if label.where and label.where != label.what else what


_IDLE = {
    "data_loading_ns": (
        "data_loading",
        "GPUs are idle while the host waits for the DataLoader",
        "Raise num_workers and prefetch_factor, set persistent_workers and pin_memory, or preprocess the data offline.",
    ),
    "allocator_ns": (
        "allocator",
        "GPUs are idle while the host allocates or frees memory",
        "",  # depends on the version of torch
    ),
    "synchronizing_ns": (
        "synchronizing",
        "GPUs are idle because the host waits for them before it launches more",
        SYNCHRONIZING_ADVICE,
    ),
    "host_bound_ns": (
        "host_bound",
        "GPUs are idle because the host launches kernels late",
        "Launch fewer, larger kernels (torch.compile, CUDA graphs, fused optimizers); no print or logging in the loop.",
    ),
    "launch_latency_ns": (
        "launch_latency",
        "GPUs are idle in short gaps between kernels that were launched in time",
        "Fuse small kernels (torch.compile, foreach optimizers) or capture a CUDA graph.",
    ),
    "waiting_ns": (
        "waiting",
        "GPUs are idle although work was launched: it waits for another stream or a copy",
        "Find what the streams wait for: copies without pinned memory, or events recorded late.",
    ),
    "bubble_ns": (
        "bubble",
        "GPUs are idle because a pipeline stage waits for another",
        "Use more micro-batches or several stages per rank (interleaved), and balance the stages.",
    ),
}
IDLE_KINDS = (*(kind for kind, *_ in _IDLE.values()), "copies")
_LOADING_ON_CPU = (
    "data_loading",
    "Ranks wait for the DataLoader",
    "Raise num_workers and prefetch_factor, set persistent_workers, or preprocess the data offline.",
)
_ADVICE_ON_GAPS: dict[int, str] = {
    HostCause.PYTHON: PYTHON_ADVICE,
    HostCause.PASSIVE: PYTHON_ADVICE,
    HostCause.NOTHING_RECORDED: UNRECORDED_ADVICE,
}
"""Advice where the host was late in long gaps, by what it did in the longest."""
_COPIES = (
    "copies",
    "Memory copies are exposed: no compute overlaps them",
    "Copy from pinned memory with non_blocking=True, on a separate stream.",
)
_ONE_STEP = 0.9
"""Share of the idle time in one step above which the others are not mentioned."""
_NOTABLE_OVERHEAD = 0.05
"""Share of a step from which the profiler's overhead is mentioned."""


def idle(context: FindingContext, left: Unclaimed) -> list[Finding]:
    """Find idle time by cause, as far as no other finding explains it, and exposed memory copies."""
    found = []
    for cause, texts in _IDLE.items():
        if context.on_cpu and cause != "data_loading_ns":
            continue  # on a CPU, gaps between operators are Python; no GPU is idle
        texts = _LOADING_ON_CPU if context.on_cpu else texts
        values = [idle_ns[cause] for idle_ns in left.idle_ns]
        found.append(_idle_finding(context, cause, texts, values, left))
    if not context.on_cpu:
        exposed = [device.split.figures["exposed_memory_ns"] for device in context.devices]
        found.append(_idle_finding(context, "exposed_memory_ns", _COPIES, exposed, left))
    return found


def _idle_finding(
    context: FindingContext, cause: str, texts: tuple[str, str, str], values: Sequence[Int64], left: Unclaimed
) -> Finding:
    devices = context.devices
    kind, text, advice = texts
    advice = advice or allocator_advice(context.metadata)
    total = context.finding(kind, text, advice, sum(int(ns.sum()) for ns in values))
    if total.share < MIN_SHARE:
        return total  # not reported: its gaps need no names
    means = [float(own.mean()) for own in values]
    most = int(np.argmax(means))
    device, own = devices[most], values[most]
    step = int(own.argmax())
    once = len(own) > 1 and int(own[step]) > _ONE_STEP * int(own.sum())
    if once:
        text += f", {duration(int(own[step]))} in {device.split.names[step]} alone"
    elif len(devices) > 1 and means[most] > 1.5 * median(means):
        text += f", most on rank {device.timeline.rank} ({duration(means[most])} per step)"
    gaps = longest_gaps(device, cause, int(own.sum()), left.explained[most])
    rank = device.timeline.rank if len(devices) > 1 else None
    if clause := gaps_text(gaps, rank) or main_activity(device, cause):
        text += f"; {clause}"
    if kind == "host_bound" and gaps:
        advice = _ADVICE_ON_GAPS.get(gaps[0].label.cause, advice)
    text += "." + (_overhead(context) if kind in ("host_bound", "launch_latency") else "")
    shown = gaps[0].step if gaps else device.split.names[step]
    evidence: dict[str, Any] = {"rank": device.timeline.rank, "step": shown, "ns": int(own[step]), "once": once}
    if gaps:
        evidence |= {"what": gaps[0].label.what, "where": gaps[0].label.where, "gaps_ns": [gap.ns for gap in gaps]}
    return replace(total, text=text, advice=advice, evidence=evidence)


def _overhead(context: FindingContext) -> str:
    """Return a sentence on the profiler's overhead where run.json knows it and it is large: it is on the host."""
    overhead = context.metadata.get("profiler_overhead")
    if not isinstance(overhead, int | float) or overhead < _NOTABLE_OVERHEAD:
        return ""
    return f" Part of it is profiler overhead: a step takes {100 * overhead:.0f} % longer with it."


def recompute(context: FindingContext) -> list[Finding]:
    """Find forward work that is recomputed in backward."""
    spent = [device.recompute_ns for device in context.devices]
    total = sum(int(values.sum()) for values in spent)
    if not total:
        return []
    backward = sum(int(device.split.figures["backward_ns"].sum()) for device in context.devices)
    most = int(np.argmax([float(values.mean()) for values in spent]))
    device, step = context.devices[most], int(spent[most].argmax())
    text = (
        f"Backward recomputes forward work (activation checkpointing): {100 * total / max(backward, 1):.0f} % of "
        "backward's compute."
    )
    advice = (
        "Checkpoint fewer blocks if memory allows, or store activations that are expensive to compute and small "
        "(selective checkpointing)."
    )
    evidence = {"rank": device.timeline.rank, "step": device.split.names[step], "ns": int(spent[most][step])}
    return [context.finding("recompute", text, advice, total, evidence)]


def unused_parameters(context: FindingContext) -> list[Finding | Claim]:
    """Find the exposed cost of DDP's search for unused parameters."""
    host = sum(int(device.parameter_search_ns.sum()) for device in context.devices)
    if not host:
        return []
    cost = [device.parameter_search_idle_ns for device in context.devices]
    most = int(np.argmax([float(values.mean()) for values in cost]))
    device, step = context.devices[most], int(cost[most].argmax())
    text = (
        f"DistributedDataParallel searches for unused parameters, {duration(host / context.steps)} of each host's step"
    )
    ddp = context.metadata.get("ddp")
    data: Mapping[str, Any] = ddp if isinstance(ddp, Mapping) else {}
    needless = bool(data.get("find_unused_parameters")) and data.get("unused_parameter_size") == 0
    hidden = "." if context.on_cpu else "; the cost counts only the time the GPU is idle."
    text += ", although all parameters were used." if needless else hidden
    advice = "Set find_unused_parameters=False if all parameters are used, else static_graph=True if they never change."
    evidence = {"rank": device.timeline.rank, "step": device.split.names[step], "ns": int(cost[most][step])}
    evidence |= {"host_ns": host // context.steps, "all_used": needless or None}
    claims = [
        Claim(number, "host_bound_ns", 0, place, ns)
        for number, values in enumerate(cost)
        for place, ns in enumerate(values.tolist())
    ]
    total = sum(int(values.sum()) for values in cost)
    return [*claims, context.finding("unused_parameters", text, advice, total, evidence)]
