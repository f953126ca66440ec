"""Findings from the figures of each GPU: idle time, copies, recompute, the search for unused parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dptrace.analysis.findings.finding import Finding, FindingContext
from dptrace.core.units import duration

__all__ = ["idle", "recompute", "unused_parameters"]

_IDLE = {
    "data_loading_ns": (
        "data_loading",
        "GPUs are idle while the host waits for the DataLoader",
        "Raise num_workers and prefetch_factor, set persistent_workers and pin_memory, or preprocess the data offline.",
    ),
    "host_bound_ns": (
        "host_bound",
        "GPUs are idle because the host launches kernels late",
        "Launch fewer, larger kernels (torch.compile, CUDA graphs, fused optimizers); no .item() or print in the loop.",
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


def idle(context: FindingContext) -> list[Finding]:
    """Find idle time by cause, and exposed memory copies."""
    devices, found = context.devices, []
    per_cause = {name: [device.idle_causes[name] for device in devices] for name in _IDLE}
    per_cause["copies"] = [device.split.figures["exposed_memory_ns"] for device in devices]
    copies = (
        "copies",
        "Memory copies are exposed: no compute overlaps them",
        "Copy from pinned memory with non_blocking=True, on a separate stream.",
    )
    on_cpu = all(device.timeline.on_cpu for device in devices)
    for name, values in per_cause.items():
        if on_cpu and name != "data_loading_ns":
            continue  # on a CPU, gaps between operators are Python; no GPU is idle
        kind, what, advice = _IDLE.get(name, copies)
        total = sum(int(value.sum()) for value in values)
        means = [float(value.mean()) for value in values]
        most = int(np.argmax(means))
        device = devices[most]
        step = int(values[most].argmax())
        text = what
        if len(devices) > 1 and means[most] > 1.5 * np.median(means):
            text += f", most on rank {device.timeline.rank} ({duration(means[most])} per step)"
        evidence = {"rank": device.timeline.rank, "step": device.split.names[step], "ns": int(values[most][step])}
        found.append(context.finding(kind, f"{text}.", advice, total, evidence))
    return found


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


def unused_parameters(context: FindingContext) -> list[Finding]:
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
    data = _ddp(context)
    needless = bool(data.get("find_unused_parameters")) and data.get("unused_parameter_size") == 0
    text += ", although all parameters were used." if needless else "; the cost counts only the time the GPU is idle."
    advice = "Set find_unused_parameters=False if all parameters are used, else static_graph=True if they never change."
    evidence = {"rank": device.timeline.rank, "step": device.split.names[step], "ns": int(cost[most][step])}
    evidence |= {"host_ns": host // context.steps, "all_used": needless or None}
    return [context.finding("unused_parameters", text, advice, sum(int(values.sum()) for values in cost), evidence)]


def _ddp(context: FindingContext) -> Mapping[str, Any]:
    data = context.metadata.get("ddp")
    return data if isinstance(data, Mapping) else {}
