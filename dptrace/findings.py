"""The few things that matter about a run: what each costs in a step, where it shows, and what to do about it.

No finding is without its cost, and none is told that costs less than a hundredth of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dptrace.device import DeviceFigures
from dptrace.intervals import Int64
from dptrace.ranks.match import Matches
from dptrace.ranks.stragglers import Stragglers

__all__ = ["Finding", "findings"]

_WORTH = 0.01
"""Share of the step below which nothing is said."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that costs time."""

    kind: str
    """``straggler``, ``exposed_comm``, ``small_messages``, ``host_bound``, ``data_loading``, ``copies`` …"""
    text: str
    """What it is, in a sentence, with its numbers."""
    advice: str
    """What to do about it."""
    cost_ns: int
    """By how much a step would be shorter without it, as far as that can be told: on the mean GPU that it holds up."""
    share: float
    """The same as a share of the step's wall time, from 0 to 1."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """Where to look: step, rank, collective."""

    def to_dict(self) -> dict[str, Any]:
        """Give the finding as plain data."""
        told = ("kind", "text", "advice", "cost_ns", "share", "evidence")
        return {name: getattr(self, name) for name in told}


def findings(devices: Sequence[DeviceFigures], matches: Matches, late: Stragglers) -> tuple[Finding, ...]:
    """Say what matters, the dearest first.

    Args:
        devices: what each GPU's own file tells.
        matches: the collectives across ranks.
        late: who came last at which of them.
    """
    devices = [device for device in devices if len(device.timeline.windows)]
    steps = sum(len(device.timeline.windows) for device in devices)
    if not steps:
        return ()
    wall = sum(int(device.split.figures["wall_ns"].sum()) for device in devices) / steps
    found = [*_stragglers(devices, matches, late, wall), *_exposed(devices, matches, wall), *_idle(devices, wall)]
    return tuple(sorted((f for f in found if f.share >= _WORTH), key=lambda finding: -finding.cost_ns))


_WHY = {
    "compute": "its own compute takes longer",
    "passed_on": "it passes on a wait for another rank",
    "memory_copies": "its memory copies take longer",
    "data_loading": "its host waits for data",
    "host_bound": "its host launches late",
    "waiting": "its GPU waits for another stream",
    "unknown": "the trace does not tell why",
}
_DO = {
    "compute": "Compare its work (batch, sequence lengths, experts) and its clocks and temperature with the others'.",
    "passed_on": "Look for the rank that it waits for.",
    "memory_copies": "Look at what it copies in that time; pin memory and copy on a stream of its own.",
    "data_loading": "Give its DataLoader more workers or prefetching, and look at its storage.",
    "host_bound": "Look at what its Python does in that time (logging, checkpoints, garbage collection, a busy CPU).",
    "waiting": "Look at what its compute stream waits for.",
    "unknown": "Look at its timeline before the collective.",
}


def _stragglers(devices: Sequence[DeviceFigures], matches: Matches, late: Stragglers, wall: float) -> list[Finding]:
    """One finding per rank and cause, of those that are the origin of a wait."""
    found = []
    steps = max(len(device.timeline.windows) for device in devices)
    counted = max(int((matches.together & matches.complete & (np.diff(matches.first) > 1)).sum()), 1)
    causes = np.array(late.cause, object)
    for device, cause in dict.fromkeys(zip(late.device.tolist(), late.cause, strict=True)):
        rows = np.flatnonzero((late.device == device) & (causes == cause))
        if cause == "passed_on":
            continue
        cost = int(late.cost_ns[rows].sum()) // steps
        worst = int(rows[late.late_ns[rows].argmax()])
        instance = int(late.instance[worst])
        rank = matches.places[device][0]
        times = "once" if len(rows) == 1 else f"{len(rows)} times"
        share = f"in {100 * len(rows) / counted:.0f} % of the collectives"
        text = (
            f"Rank {rank} keeps the others waiting: last {times} ({share}), by {_ms(np.median(late.late_ns[rows]))} "
            f"(median), {_ms(late.late_ns[worst])} at worst. Why: {_WHY[cause]}."
        )
        where = {"rank": rank, "step": matches.step[instance], "collective": matches.kind[instance], "cause": cause}
        where |= {"instance": instance, "late_ns": int(late.late_ns[worst]), "count": len(rows)}
        found.append(Finding("straggler", text, _DO[cause], cost, cost / wall, where))
    return found


def _exposed(devices: Sequence[DeviceFigures], matches: Matches, wall: float) -> list[Finding]:
    """Communication that no compute hides, waiting for late ranks left out, for each kind of collective."""
    steps = sum(len(device.timeline.windows) for device in devices)
    waits = _waits(devices, matches)
    found = []
    for kind in sorted({kind for device in devices for kind in device.split.comm}):
        exposed = waited = tail = hidden = count = size = 0
        worst = (0, None, 0)
        for number, device in enumerate(devices):
            if kind not in device.split.comm:
                continue
            figures = device.split.comm[kind]
            exposed += int(figures.exposed_ns.sum())
            hidden += int(figures.overlapped_ns.sum())
            count += int(figures.count.sum())
            size += int(figures.bytes.sum())
            mine, after = _of_kind(device, kind)
            waited += int(waits[number][mine].sum())
            own = _exposures(device)[mine]
            tail += int(own[after].sum())
            top = int(figures.exposed_ns.argmax())
            if int(figures.exposed_ns[top]) > worst[0]:
                worst = (int(figures.exposed_ns[top]), device.split.names[top], device.timeline.rank)
        cost = max(exposed - waited, 0) // steps
        if not exposed:
            continue
        text, advice = _exposed_text(kind, cost, tail / exposed, hidden, exposed, count / steps, size / max(count, 1))
        evidence = {"collective": kind, "step": worst[1], "rank": worst[2], "exposed_ns": worst[0]}
        evidence |= {"after_backward_share": round(tail / exposed, 3), "count": count / steps, "bytes": size / steps}
        found.append(Finding("exposed_comm", text, advice, cost, cost / wall, evidence))
    return found


_MANY, _SMALL = 20, 1 << 20
"""More collectives than this in a step, of fewer bytes than this on average, are gradients that go one by one."""
_TAIL = 0.8
"""A kind whose exposed time lies after backward by this share or more is a tail."""


def _exposed_text(
    kind: str, cost: int, tail: float, hidden: int, exposed: int, count: float, size: float
) -> tuple[str, str]:
    where = f", {100 * tail:.0f} % of it after backward's last kernel" if tail else ""
    text = f"{kind} that no compute hides{where}; {100 * hidden / (hidden + exposed):.0f} % of it is hidden."
    gradients = kind in ("all_reduce", "reduce_scatter")
    if gradients and count > _MANY and (0 < size < _SMALL or count > 5 * _MANY):
        bytes_each = f", of {size / 1e3:,.0f} kB on average" if size else ""
        text += f" {count:.0f} in a step{bytes_each}: each pays a latency of its own."
        return text, "Put gradients together in buckets, as DistributedDataParallel does (bucket_cap_mb=25)."
    if gradients and tail >= _TAIL and hidden < 0.05 * exposed:
        return text, "Start it while backward goes on: gradient hooks, DistributedDataParallel, or smaller buckets."
    if gradients and tail >= _TAIL:
        return text, "What is left is the tail of the last bucket: try a smaller bucket_cap_mb, or fewer bytes (bf16)."
    if kind == "all_gather":
        return text, "Prefetch earlier (FSDP: set_modules_to_forward_prefetch), or reshard less after forward."
    if kind in ("broadcast",):
        return (
            text,
            "DistributedDataParallel broadcasts buffers each step: broadcast_buffers=False where they need not be.",
        )
    return text, "Move independent compute beside it, or send fewer bytes."


def _exposures(device: DeviceFigures) -> Int64:
    return device.exposed_ns[device.timeline.collective >= 0]


def _of_kind(device: DeviceFigures, kind: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Tell which of a device's collectives are of a kind, and which of those end after their step's backward."""
    timeline = device.timeline
    comm = np.flatnonzero(timeline.collective >= 0)
    kinds = np.array([timeline.collectives[i].kind for i in timeline.collective[comm].tolist()], object)
    mine = np.flatnonzero(kinds == kind)
    step = timeline.step[comm[mine]]
    ends = np.append(device.backward_end_ns, 0)
    end = ends[np.where(step >= 0, step, len(ends) - 1)]
    return mine, (end > 0) & (timeline.end_ns[comm[mine]] > end)


def _waits(devices: Sequence[DeviceFigures], matches: Matches) -> list[Int64]:
    """Give, for each collective of each device, how much of its exposed time is waiting for ranks that came later."""
    waits = [np.zeros(len(_exposures(device)), np.int64) for device in devices]
    if not len(matches):
        return waits
    length = matches.end_ns - matches.start_ns
    shortest = np.minimum.reduceat(length, matches.first[:-1])[matches.instance]
    wait = np.where(matches.together[matches.instance], length - shortest, 0)
    places = {(device.timeline.rank, device.timeline.device): number for number, device in enumerate(devices)}
    for number, place in enumerate(matches.places):
        if (own := places.get(place)) is not None:
            members = matches.device == number
            index = matches.index[members]
            waits[own][index] = np.minimum(wait[members], _exposures(devices[own])[index])
    return waits


_IDLE = {
    "data_loading_ns": (
        "data_loading",
        "GPUs idle while the host waits for the DataLoader",
        "More workers, prefetch_factor, persistent_workers and pin_memory; or decode and augment ahead of time.",
    ),
    "host_bound_ns": (
        "host_bound",
        "GPUs idle because their hosts launch late",
        "Fewer, larger kernels: torch.compile, CUDA graphs, fused optimizers; no .item() or print in the loop.",
    ),
    "launch_latency_ns": (
        "launch_latency",
        "GPUs idle in the gaps between kernels that were launched in time",
        "Many tiny kernels: fuse them (torch.compile, foreach optimizers) or capture a CUDA graph.",
    ),
    "waiting_ns": (
        "waiting",
        "GPUs idle though work was launched: it waits for another stream or a copy",
        "Look at what the streams wait for: copies without pinned memory, events recorded late.",
    ),
}


def _idle(devices: Sequence[DeviceFigures], wall: float) -> list[Finding]:
    """Idle time by cause, and copies that nothing hides."""
    found = []
    steps = sum(len(device.timeline.windows) for device in devices)
    per_cause = {name: [device.idle_causes[name] for device in devices] for name in _IDLE}
    per_cause["copies"] = [device.split.figures["exposed_memory_ns"] for device in devices]
    copies = (
        "copies",
        "memory copies that nothing hides",
        "pin_memory and non_blocking=True, on a stream of their own.",
    )
    for name, values in per_cause.items():
        kind, what, advice = _IDLE.get(name, copies)
        cost = int(sum(int(value.sum()) for value in values) // steps)
        means = [float(value.mean()) for value in values]
        most = int(np.argmax(means))
        device = devices[most]
        step = int(values[most].argmax())
        text = f"{what[0].upper()}{what[1:]}"
        if len(devices) > 1 and means[most] > 1.5 * np.median(means):
            text += f", most on rank {device.timeline.rank} ({_ms(means[most])} of a step)"
        evidence = {"rank": device.timeline.rank, "step": device.split.names[step], "ns": int(values[most][step])}
        found.append(Finding(kind, f"{text}.", advice, cost, cost / wall, evidence))
    return found


def _ms(ns: float) -> str:
    value = float(ns) / 1e6
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.2f} ms"
