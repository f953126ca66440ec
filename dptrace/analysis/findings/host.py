"""What one GPU's own file tells: idle time, copies, forward work done again, the search for unused parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dptrace.analysis.findings.finding import Finding, FindingContext, milliseconds

__all__ = ["idle", "recompute", "unused_parameters"]

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
    "bubble_ns": (
        "bubble",
        "GPUs idle because a stage of the pipeline waits for another",
        "More micro-batches, or several stages on each rank (interleaved); stages that take equally long.",
    ),
}


def idle(context: FindingContext) -> list[Finding]:
    """Idle time by cause, and copies that nothing hides."""
    devices, found = context.devices, []
    per_cause = {name: [device.idle_causes[name] for device in devices] for name in _IDLE}
    per_cause["copies"] = [device.split.figures["exposed_memory_ns"] for device in devices]
    copies = (
        "copies",
        "memory copies that nothing hides",
        "pin_memory and non_blocking=True, on a stream of their own.",
    )
    on_cpu = all(device.timeline.on_cpu for device in devices)
    for name, values in per_cause.items():
        if on_cpu and name != "data_loading_ns":
            continue  # between two operators there is Python; no GPU is kept waiting
        kind, what, advice = _IDLE.get(name, copies)
        total = sum(int(value.sum()) for value in values)
        means = [float(value.mean()) for value in values]
        most = int(np.argmax(means))
        device = devices[most]
        step = int(values[most].argmax())
        text = f"{what[0].upper()}{what[1:]}"
        if len(devices) > 1 and means[most] > 1.5 * np.median(means):
            text += f", most on rank {device.timeline.rank} ({milliseconds(means[most])} of a step)"
        evidence = {"rank": device.timeline.rank, "step": device.split.names[step], "ns": int(values[most][step])}
        found.append(context.finding(kind, f"{text}.", advice, total, evidence))
    return found


def recompute(context: FindingContext) -> list[Finding]:
    """Forward work done again in backward."""
    spent = [device.recompute_ns for device in context.devices]
    total = sum(int(values.sum()) for values in spent)
    if not total:
        return []
    backward = sum(int(device.split.figures["backward_ns"].sum()) for device in context.devices)
    most = int(np.argmax([float(values.mean()) for values in spent]))
    device, step = context.devices[most], int(spent[most].argmax())
    text = (
        f"Forward work is done again in backward (activation checkpointing): {100 * total / max(backward, 1):.0f} % of "
        "backward's compute."
    )
    advice = (
        "Checkpoint fewer blocks if memory allows, or keep what is dear to compute and cheap to store (selective "
        "checkpointing)."
    )
    evidence = {"rank": device.timeline.rank, "step": device.split.names[step], "ns": int(spent[most][step])}
    return [context.finding("recompute", text, advice, total, evidence)]


def unused_parameters(context: FindingContext) -> list[Finding]:
    """DDP's search for parameters that the loss does not depend on: what of it no GPU work hides."""
    host = sum(int(device.parameter_search_ns.sum()) for device in context.devices)
    if not host:
        return []
    cost = [device.parameter_search_idle_ns for device in context.devices]
    most = int(np.argmax([float(values.mean()) for values in cost]))
    device, step = context.devices[most], int(cost[most].argmax())
    text = (
        "DistributedDataParallel searches for unused parameters, "
        f"{milliseconds(host / context.steps)} of each host's step"
    )
    data = _ddp(context)
    needless = bool(data.get("find_unused_parameters")) and data.get("unused_parameter_size") == 0
    text += ", though all parameters were used." if needless else "; the cost is what no GPU work hides."
    advice = "find_unused_parameters=False where all parameters are used, else static_graph=True if they never change."
    evidence = {"rank": device.timeline.rank, "step": device.split.names[step], "ns": int(cost[most][step])}
    evidence |= {"host_ns": host // context.steps, "all_used": needless or None}
    return [context.finding("unused_parameters", text, advice, sum(int(values.sum()) for values in cost), evidence)]


def _ddp(context: FindingContext) -> Mapping[str, Any]:
    data = context.metadata.get("ddp")
    return data if isinstance(data, Mapping) else {}
