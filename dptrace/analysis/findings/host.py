"""Findings from the figures of each GPU: idle time, copies, recompute, the search for unused parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from dptrace.analysis.findings.evidence import Idle, Recompute, UnusedParameters
from dptrace.analysis.findings.finding import (
    MIN_SHARE,
    Finding,
    FindingContext,
    allocator_advice,
    unprofiled_step_ns,
)
from dptrace.analysis.per_gpu.causes import IDLE_CAUSES, PIN_ADVICE, PYTHON_ADVICE, UNRECORDED_ADVICE, IdleKind
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.intervals import EMPTY, Int64, IntervalSet, covered, intersect, median, subtract, union
from dptrace.core.units import duration
from dptrace.timeline.model import HostCause, HostLabel, Kind, Timeline
from dptrace.timeline.steps import WHOLE_TRACE

# Name the longest idle gaps: where they are, and what the host did in them.


_EXAMINED = 20
"""Number of a device's longest gaps that are looked at."""
_NOTABLE = 0.1
"""Share of the idle time of a cause from which a gap is named."""
_COUNTED = 500
"""Number of a device's longest gaps that are added up."""
_STANDS_OUT = 0.15
"""Share of the longer gaps from which the place of most of them is named."""
PAUSE_NS = 300_000
"""Shortest gap that is named."""
_MAX_NAMED = 2
"""Gaps that a finding names."""
HOST_CAUSES = {cause.name: cause.host_causes for cause in IDLE_CAUSES if cause.host_causes}
"""What the host did in idle time of a cause; causes without host activity are missing."""


class Gap(msgspec.Struct, frozen=True):
    """The part of an idle gap that one thing on the host filled."""

    ns: int
    step: str
    label: HostLabel


def longest_gaps(device: DeviceFigures, cause: str, gaps: IntervalSet, total_ns: int) -> list[Gap]:
    """Return the gaps of a cause that are a notable part of its idle time on a device, the longest first.

    Args:
        cause: one of ``causes.CAUSES``; causes without host activity have no gaps.
        gaps: where to look.
        total_ns: the idle time of the cause.
    """
    if cause not in HOST_CAUSES:
        return []
    starts, ends = gaps
    least = max(_NOTABLE * total_ns, PAUSE_NS)
    found = []
    for number in np.argsort(starts - ends, kind="stable")[:_EXAMINED].tolist():
        start, end = int(starts[number]), int(ends[number])
        spent = device.timeline.host.spent(start, end)
        own = {label: ns for label, ns in spent.items() if label.cause in HOST_CAUSES[cause]}
        if own and sum(own.values()) >= least:
            label = max(own, key=lambda label: own[label])
            found.append(Gap(sum(own.values()), _step_at(device, start), label))
    return sorted(found, key=lambda gap: -gap.ns)[:_MAX_NAMED]


def main_activity(device: DeviceFigures, cause: str, gaps: IntervalSet) -> str:
    """Return a clause on what the host did in most of the gaps of a cause; empty if nothing stands out."""
    if cause not in HOST_CAUSES:
        return ""
    starts, ends = gaps
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
    place = int(np.searchsorted(windows.start_ns, time, side="right")) - 1
    return windows.names[max(place, 0)]


def gaps_text(gaps: Sequence[Gap], rank: int | None) -> str:
    """Return a clause on the longest gaps; empty without any.

    >>> gap = Gap(156_000_000, "ProfilerStep#4", HostLabel(HostCause.ALLOCATOR, "cudaMalloc", "forward"))
    >>> gaps_text([gap], 0)
    'the longest gap is 156 ms in ProfilerStep#4 on rank 0: “cudaMalloc” in “forward”'
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


# Pauses: long stretches in which the trace shows nothing of the host.


PAUSE_SHARE = 0.02
"""Share of the mean step from which a stretch without any host event is a pause."""


def pauses(timeline: Timeline) -> IntervalSet:
    """Return when nothing of the host is recorded for at least 2 % of the mean step, and 300 µs, at a time."""
    start, end = timeline.host.intervals(HostCause.NOTHING_RECORDED)
    long = end - start >= max(PAUSE_NS, PAUSE_SHARE * timeline.windows.wall_ns / max(len(timeline.windows), 1))
    return subtract((start[long], end[long]), timeline.data_loading)


class _Idle(msgspec.Struct, frozen=True):
    """The idle time of each device by cause and step, with pauses as a cause of their own if they have a finding."""

    ns: list[dict[str, Int64]]
    pauses: list[IntervalSet] = []
    """When each device was idle while nothing of its host is recorded, if that has a finding of its own."""


def _idle_of(context: FindingContext) -> _Idle:
    devices = context.devices
    if context.on_cpu:
        return _Idle([device.idle_causes for device in devices])
    found = [intersect(device.host_gaps, pauses(device.timeline)) for device in devices]
    idle_ns = []
    for device, when in zip(devices, found, strict=True):
        late = device.idle_causes["host_bound_ns"]
        ns = np.minimum(device.timeline.windows.per_step(when), late)
        idle_ns.append(device.idle_causes | {"host_bound_ns": late - ns, "unrecorded_ns": ns})
    if sum(int(own["unrecorded_ns"].sum()) for own in idle_ns) < MIN_SHARE * context.wall_ns * context.steps:
        return _Idle([device.idle_causes for device in devices])
    return _Idle(idle_ns, found)


def _pauses_text(device: DeviceFigures, when: IntervalSet, rank: int | None) -> str:
    """Return a clause on the number of pauses, and where the longest is."""
    starts, ends = when
    host, longest = device.timeline.host, int((ends - starts).argmax())
    start, end = int(starts[longest]), int(ends[longest])
    place = int(np.searchsorted(host.start_ns, start, side="right")) - 1
    around = [host.labels[host.label[i]] for i in (place - 1, place + 1) if 0 <= i < len(host.label)]
    count, steps = len(starts), len(device.timeline.windows)
    of = "the only gap" if count == 1 else f"the longest of {count} gaps in {steps} step{'s'[: steps > 1]}"
    between = f", between {' and '.join(map(_activity, around))}" if len(around) == 2 else ""
    on = f" on rank {rank}" if rank is not None else ""
    return f"{of}{on} is {duration(end - start)}{_in(_step_at(device, start))}{between}"


_UNRECORDED = IdleKind(
    name="unrecorded_ns", text="GPUs are idle while the trace shows nothing of the host", advice=UNRECORDED_ADVICE
)
_IDLE = tuple(cause for cause in IDLE_CAUSES if cause.text)
_LOADING_ON_CPU = IdleKind(
    name="data_loading_ns",
    text="Ranks wait for the DataLoader",
    advice="Raise num_workers and prefetch_factor, set persistent_workers, or preprocess the data offline.",
)
_COPIES = IdleKind(
    name="exposed_memory_ns",
    named="copies",
    text="Memory copies are exposed: no compute overlaps them",
    advice="Copy from pinned memory with non_blocking=True, on a separate stream.",
)
IDLE_KINDS = tuple(one.kind for one in (*_IDLE, _UNRECORDED, _COPIES))
_ADVICE_ON_GAPS: dict[int, str] = {
    HostCause.PYTHON: PYTHON_ADVICE,
    HostCause.PASSIVE: PYTHON_ADVICE,
    HostCause.NOTHING_RECORDED: UNRECORDED_ADVICE,
}
"""Advice where the host was late in long gaps, by what it did in the longest."""
_PINNED_ADVICE = (
    "The memory is pinned already: copy the next batch on a stream of its own while the GPU computes, send fewer bytes "
    "(a smaller dtype), or keep the data on the GPU."
)
_ONE_STEP = 0.9
"""Share of the idle time in one step above which the others are not mentioned."""
_NOTABLE_OVERHEAD = 0.05
"""Share of a step by which one without the profiler is shorter where that is mentioned."""


def idle(context: FindingContext) -> list[Finding]:
    """Find idle time by cause, and exposed memory copies."""
    left = _idle_of(context)
    if context.on_cpu:  # gaps between operators are Python; no GPU is idle
        return [_idle_finding(context, _LOADING_ON_CPU, left)]
    kinds = (*_IDLE, _UNRECORDED) if left.pauses else _IDLE
    found = [_idle_finding(context, kind, left) for kind in kinds]
    copies = replace(_COPIES, advice=_PINNED_ADVICE) if _mostly_pinned(context) else _COPIES
    return [*found, _idle_finding(context, copies, left)]


def _mostly_pinned(context: FindingContext) -> bool:
    """Return whether most time of copies and sets that no compute hides is of copies from or to pinned memory."""
    pinned = whole = 0
    for timeline in context.timelines:
        computes = timeline.kind == Kind.COMPUTE
        busy = union(timeline.start_ns[computes], timeline.end_ns[computes])
        rows = (timeline.kind == Kind.MEMORY) & (timeline.step >= 0)
        start, end = timeline.start_ns[rows], timeline.end_ns[rows]
        exposed = end - start - (covered(busy, end) - covered(busy, start))
        is_pinned = np.array(["pinned" in name.lower() for name in timeline.names] or [False], np.bool_)
        pinned += int(exposed[is_pinned[timeline.name[rows]]].sum())
        whole += int(exposed.sum())
    return 2 * pinned > whole


def _idle_finding(context: FindingContext, idle_kind: IdleKind, left: _Idle) -> Finding:
    kind, cause, devices = idle_kind.kind, idle_kind.name, context.devices
    if cause == _COPIES.name:
        values = [device.split.figures[cause] for device in devices]
    else:
        values = [idle_ns[cause] for idle_ns in left.ns]
    total = context.finding(kind, idle_kind.text, idle_kind.advice, sum(int(ns.sum()) for ns in values))
    if total.share < MIN_SHARE:
        return total  # not reported: its gaps need no names
    means = [float(own.mean()) for own in values]
    most = int(np.argmax(means))
    device, own = devices[most], values[most]
    step = int(own.argmax())
    once = len(own) > 1 and int(own[step]) > _ONE_STEP * int(own.sum())
    text = idle_kind.text
    if once:
        text += f", {duration(int(own[step]))} in {device.split.names[step]} alone"
    elif len(devices) > 1 and means[most] > 1.5 * median(means):
        text += f", most on rank {device.timeline.rank} ({duration(means[most])} per step)"
    clause, gaps = _where(context, idle_kind, left, most, int(own.sum()))
    text += f"; {clause}." if clause else "."
    shown = gaps[0].step if gaps else device.split.names[step]
    evidence = Idle(rank=device.timeline.rank, step=shown, ns=int(own[step]), once=once)
    if gaps:
        label = gaps[0].label
        evidence = replace(evidence, what=label.what, where=label.where, gaps_ns=[gap.ns for gap in gaps])
    if kind in ("host_bound", "launch_latency") and not once:
        sentence, figures = _without_profiler(context, left)
        text, evidence = text + sentence, replace(evidence, **figures)
    return replace(total, text=text, advice=_advice(context, idle_kind, gaps), evidence=evidence)


def _where(
    context: FindingContext, idle_kind: IdleKind, left: _Idle, number: int, total_ns: int
) -> tuple[str, list[Gap]]:
    """Return a clause on where a device's idle time of a cause is, and its longest gaps.

    Args:
        number: which of the devices.
        total_ns: its idle time of that cause.
    """
    device, cause = context.devices[number], idle_kind.name
    rank = device.timeline.rank if len(context.devices) > 1 else None
    when = left.pauses[number] if left.pauses else EMPTY
    if cause == "unrecorded_ns":
        return _pauses_text(device, when, rank), []
    looked_at = subtract(device.host_gaps, when) if cause == "host_bound_ns" else device.host_gaps
    if cause == "launching_ns":
        looked_at = intersect(device.timeline.launching, device.timeline.windows.recorded)
    gaps = longest_gaps(device, cause, looked_at, total_ns)
    return gaps_text(gaps, rank) or main_activity(device, cause, looked_at), gaps


def _advice(context: FindingContext, idle_kind: IdleKind, gaps: Sequence[Gap]) -> str:
    if idle_kind.kind == "allocator":
        return allocator_advice(context.metadata, gaps[0].label.what if gaps else _allocates(context))
    if idle_kind.kind == "launching" and gaps and "emcpy" in gaps[0].label.what:
        return PIN_ADVICE
    usual = (context.is_compiled and idle_kind.advice_if_compiled) or idle_kind.advice
    return _ADVICE_ON_GAPS.get(gaps[0].label.cause, usual) if idle_kind.kind == "host_bound" and gaps else usual


def _allocates(context: FindingContext) -> str:
    """Return the call in which hosts allocate the longest; empty for none."""
    spent = Counter[str]()
    for timeline in context.timelines:
        for begin, end in np.column_stack(timeline.windows.recorded).tolist():
            for label, ns in timeline.host.spent(begin, end).items():
                spent[label.what] += ns * (label.cause == HostCause.ALLOCATOR)
    (call, ns), *_ = spent.most_common(1) or [("", 0)]
    return call if ns else ""


def _without_profiler(context: FindingContext, left: _Idle) -> tuple[str, dict[str, int]]:
    """Return what steps without the profiler leave to gain, as a sentence and figures; nothing if they take as long."""
    plain = unprofiled_step_ns(context.metadata)
    walls = np.concatenate([device.split.figures["wall_ns"] for device in context.devices])
    if plain is None or plain > (1 - _NOTABLE_OVERHEAD) * min(median(walls), context.wall_ns):
        return "", {}
    idle_ns = sum(int(device.split.figures["idle_ns"].sum()) for device in context.devices)
    paused = sum(int(own["unrecorded_ns"].sum()) for own in left.ns) / context.steps if left.pauses else 0
    waited = sum(int(waits.sum()) for waits in context.waits)  # for other ranks, which may then be earlier
    busy = min(plain, context.wall_ns - (idle_ns + waited) / context.steps)
    gained = round(max(plain - busy - paused, 0))
    text = f" Without the profiler a step takes {duration(plain)}, of which GPUs are busy {duration(busy)}"
    text += f", and idle {duration(paused)} where nothing is recorded" if paused else ""
    counted = sum(int(own[cause].sum()) for own in left.ns for cause in ("host_bound_ns", "launch_latency_ns"))
    if gained * context.steps < counted:  # else other idle time is within it, and it limits nothing
        own = f"at most {duration(gained)} of the idle time here is the job's own, the rest"
        text += f": {own if gained else 'all idle time here'} is the profiler's"
    return f"{text}.", {"unprofiled_step_ns": round(plain), "unprofiled_gain_ns": gained}


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
    evidence = Recompute(rank=device.timeline.rank, step=device.split.names[step], ns=int(spent[most][step]))
    return [context.finding("recompute", text, advice, total, evidence)]


def unused_parameters(context: FindingContext) -> list[Finding]:
    """Find the exposed time of DDP's search for unused parameters."""
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
    hidden = "." if context.on_cpu else "; only time in which the GPU is idle counts."
    text += ", although all parameters were used." if needless else hidden
    advice = "Set find_unused_parameters=False if all parameters are used, else static_graph=True if they never change."
    evidence = UnusedParameters(
        rank=device.timeline.rank,
        step=device.split.names[step],
        ns=int(cost[most][step]),
        host_ns=host // context.steps,
        all_used=needless or None,
    )
    total = sum(int(values.sum()) for values in cost)
    return [context.finding("unused_parameters", text, advice, total, evidence)]
