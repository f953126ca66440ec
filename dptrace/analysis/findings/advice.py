"""Advice on exposed communication, depending on its origin and on the options the run already uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from dptrace.analysis.cross_rank.ddp_buckets import ddp_logging_data
from dptrace.analysis.findings.finding import FindingContext
from dptrace.core.units import byte_size
from dptrace.model.collectives import COLLECTIVES
from dptrace.timeline.model import Phase

__all__ = [
    "GRADIENTS",
    "PYTHON_ADVICE",
    "SYNCHRONIZING_ADVICE",
    "UNRECORDED_ADVICE",
    "allocator_advice",
    "exposed_advice",
    "first_bucket_advice",
]

SYNCHRONIZING_ADVICE = (
    "Remove the blocking call (.item(), .cpu(), cudaStreamSynchronize, a copy without non_blocking=True), or move it "
    "after the launches."
)
PYTHON_ADVICE = (
    "Find the Python code there: sleep, I/O, locks, logging, checkpoints, garbage collection. A recording "
    "with_stack=True names the function."
)
UNRECORDED_ADVICE = (
    "The trace shows no call there. Record with_stack=True, and look for garbage collection, logging and checkpoints."
)
GRADIENTS = ("all_reduce", "reduce_scatter")
"""Kinds that reduce gradients."""
_MANY, _SMALL = 20, 1 << 20
"""More collectives per step than this, with smaller mean bytes than this, are gradients reduced one by one."""
_TAIL = 0.8
"""Share of the exposed time after backward that makes it a tail."""
_ANY = "Overlap it with independent compute, or send fewer bytes."
_CAP_BYTES = 25 << 20
"""DDP's default of bucket_cap_mb."""
_ALLOC_CONF = (2, 10)
"""First torch whose CUDA allocator takes its settings from PYTORCH_ALLOC_CONF; 2.9 knows the name and ignores it."""


def allocator_advice(metadata: Mapping[str, Any]) -> str:
    """Return advice on allocations, with the variable that the recorded torch reads, or both where it is not known."""
    version = re.match(r"(\d+)\.(\d+)", str(_mapping(metadata.get("versions")).get("torch")))
    new, old = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
    if version is None:
        name, before = new, f" ({old} before torch {'.'.join(map(str, _ALLOC_CONF))})"
    else:
        name, before = new if tuple(map(int, version.groups())) >= _ALLOC_CONF else old, ""
    return (
        f"Keep freed blocks: set {name}=expandable_segments:True{before}, leave memory headroom, and allocate once "
        "before the loop."
    )


def exposed_advice(
    context: FindingContext, kind: str, tail: float, hidden: int, exposed: int, count: float, size: float
) -> tuple[str, str]:
    """Return text and advice on the exposed time of a kind of collective.

    Args:
        tail: share of the exposed time after backward.
        hidden, exposed: ns, over all steps.
        count, size: number per step, and mean bytes.
    """
    last = "operator" if context.on_cpu else "kernel"
    where = f", {100 * tail:.0f} % of it after the last backward {last}" if tail else ""
    text = f"{kind}: {100 * exposed / (hidden + exposed):.0f} % of its time is exposed{where}."
    gradients = kind in GRADIENTS
    if gradients and count > _MANY and (0 < size < _SMALL or count > 5 * _MANY):
        bytes_each = f", {byte_size(size)} on average" if size else ""
        text += f" {count:.0f} per step{bytes_each}: each pays the latency."
        return text, "Reduce gradients in buckets, as DistributedDataParallel does (bucket_cap_mb=25)."
    if gradients and tail >= _TAIL and hidden < 0.05 * exposed:
        return text, "Start it during backward: use gradient hooks, DistributedDataParallel, or smaller buckets."
    if gradients and tail >= _TAIL and not _ddp_may_be(context):
        return text, "Only the last message is exposed: send it in smaller parts as gradients become ready, or in bf16."
    if gradients and tail >= _TAIL:
        return text, "Only the last bucket is exposed: try a smaller bucket_cap_mb, or send fewer bytes (bf16)."
    if kind == "all_gather":
        return text, _for_gathers(context)
    if kind == "broadcast" and _ddp_may_be(context) and _mostly_in_forward(context, kind):
        return (
            text,
            "DistributedDataParallel broadcasts buffers in each step: set broadcast_buffers=False if not needed.",
        )
    if kind in COLLECTIVES and COLLECTIVES[kind].point_to_point and context.pipelines:
        return text, "In a pipeline, this is mostly waiting for another stage, not transfer: see the bubble."
    return text, _ANY


def _for_gathers(context: FindingContext) -> str:
    """Return advice on FSDP's all-gathers that the run does not follow already."""
    gathers = [c for d in context.devices for c in d.timeline.collectives if c.kind == "all_gather"]
    if not any(c.label.startswith("FSDP::") for c in gathers):
        return _ANY
    options = _mapping(context.metadata.get("options"))
    todo = []
    if options.get("prefetch") != "explicit":
        todo.append("prefetch earlier (FSDP: set_modules_to_forward_prefetch)")
    if options.get("reshard_after_forward") != "no":
        todo.append("reshard less after forward")
    text = ", or ".join([*todo, "send fewer bytes (bf16)"][:2])
    return f"{text[0].upper()}{text[1:]}."


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _ddp_may_be(context: FindingContext) -> bool:
    """Return whether DDP is in use: its labels are in the trace, or dptrace's recorder saved its logging data."""
    if ddp_logging_data(context.metadata):
        return True
    return not context.metadata and any(device.timeline.uses_ddp for device in context.devices)


def _mostly_in_forward(context: FindingContext, kind: str) -> bool:
    """Return whether most of a kind was launched in forward, where DDP broadcasts buffers."""
    forward = whole = 0
    for device in context.devices:
        timeline = device.timeline
        comm = np.flatnonzero(timeline.collective >= 0)
        own = np.array([timeline.collectives[i].kind == kind for i in timeline.collective[comm].tolist()], np.bool_)
        forward += int((timeline.phase[comm][own] == Phase.FORWARD).sum())
        whole += int(own.sum())
    return 2 * forward > whole


def first_bucket_advice(context: FindingContext) -> str:
    """Return advice on a smaller first bucket, depending on how the run sets it."""
    if not _ddp_may_be(context):
        return "Make the first message smaller, so that it starts earlier."
    options = _mapping(context.metadata.get("options"))
    logged = ddp_logging_data(context.metadata).get("bucket_cap_bytes", 0)
    given = options.get("bucket_cap_mb", logged)
    if given in (None, _CAP_BYTES):
        return "Make the first bucket smaller: lower bucket_cap_mb."
    return "Make the first bucket smaller: leave bucket_cap_mb unset (DDP then starts with 1 MiB), or lower it."
