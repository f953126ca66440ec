"""What to do about exposed communication: it depends on who asked for it, and on what the run has tried already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dptrace.analysis.findings.finding import FindingContext
from dptrace.timeline.model import Phase

__all__ = ["GRADIENTS", "first_bucket_advice", "for_exposed"]

GRADIENTS = ("all_reduce", "reduce_scatter")
"""Kinds that gradients are reduced by."""
_MANY, _SMALL = 20, 1 << 20
"""More collectives than this in a step, of fewer bytes than this on average, are gradients that go one by one."""
_TAIL = 0.8
"""A kind whose exposed time lies after backward by this share or more is a tail."""
_ANY = "Move independent compute beside it, or send fewer bytes."
_CAP_BYTES = 25 << 20
"""What DDP takes where bucket_cap_mb is not given."""


def for_exposed(
    context: FindingContext, kind: str, tail: float, hidden: int, exposed: int, count: float, size: float
) -> tuple[str, str]:
    """Say what of a kind of collective is exposed, and what to do about it.

    Args:
        tail: share of the exposed time that lies after backward.
        hidden, exposed: ns, over all steps.
        count, size: how many in a step, and their mean bytes.
    """
    where = f", {100 * tail:.0f} % of that after backward's last kernel" if tail else ""
    text = f"{kind}: no compute hides {100 * exposed / (hidden + exposed):.0f} % of its time{where}."
    gradients = kind in GRADIENTS
    if gradients and count > _MANY and (0 < size < _SMALL or count > 5 * _MANY):
        bytes_each = f", of {size / 1e3:,.0f} kB on average" if size else ""
        text += f" {count:.0f} in a step{bytes_each}: each pays a latency of its own."
        return text, "Put gradients together in buckets, as DistributedDataParallel does (bucket_cap_mb=25)."
    if gradients and tail >= _TAIL and hidden < 0.05 * exposed:
        return text, "Start it while backward goes on: gradient hooks, DistributedDataParallel, or smaller buckets."
    if gradients and tail >= _TAIL:
        return text, "What is left is the tail of the last bucket: try a smaller bucket_cap_mb, or fewer bytes (bf16)."
    if kind == "all_gather":
        return text, _for_gathers(context)
    if kind == "broadcast" and _ddp_may_be(context) and _mostly_in_forward(context, kind):
        return (
            text,
            "DistributedDataParallel broadcasts buffers each step: broadcast_buffers=False where they need not be.",
        )
    if kind in ("send", "recv", "send_recv") and context.pipelines:
        return text, "In a pipeline this is waiting for another stage rather than transfer: see its bubble."
    return text, _ANY


def _for_gathers(context: FindingContext) -> str:
    """Say what to do about FSDP's all-gathers, and only of what was not done yet."""
    gathers = [c for d in context.devices for c in d.timeline.collectives if c.kind == "all_gather"]
    if not any(c.label.startswith("FSDP::") for c in gathers):
        return _ANY
    options = _mapping(context.metadata.get("options"))
    todo = []
    if options.get("prefetch") != "explicit":
        todo.append("prefetch earlier (FSDP: set_modules_to_forward_prefetch)")
    if options.get("reshard_after_forward") != "no":
        todo.append("reshard less after forward")
    told = ", or ".join([*todo, "send fewer bytes (bf16)"][:2])
    return f"{told[0].upper()}{told[1:]}."


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _ddp(context: FindingContext) -> Mapping[str, Any]:
    """Give DDP's logging data, of the run or of the first rank that has it; nothing without any."""
    ranks = context.metadata.get("ranks")
    entries = [context.metadata, *(ranks if isinstance(ranks, list) else [])]
    return next((found for entry in entries if (found := _mapping(_mapping(entry).get("ddp")))), {})


def _ddp_may_be(context: FindingContext) -> bool:
    """Tell whether DDP trains: dptrace's recorder would have kept its logging data."""
    return not context.metadata or bool(_ddp(context))


def _mostly_in_forward(context: FindingContext, kind: str) -> bool:
    """Tell whether most of a kind was launched in forward, where DDP broadcasts buffers."""
    forward = whole = 0
    for device in context.devices:
        timeline = device.timeline
        comm = np.flatnonzero(timeline.collective >= 0)
        own = np.array([timeline.collectives[i].kind == kind for i in timeline.collective[comm].tolist()], np.bool_)
        forward += int((timeline.phase[comm][own] == Phase.FORWARD).sum())
        whole += int(own.sum())
    return 2 * forward > whole


def first_bucket_advice(context: FindingContext) -> str:
    """Say how to make the first bucket smaller, by what is known of how it was set."""
    if not _ddp_may_be(context):
        return "Make the first message smaller, so that it sets out earlier."
    options = _mapping(context.metadata.get("options"))
    given = options["bucket_cap_mb"] if "bucket_cap_mb" in options else _ddp(context).get("bucket_cap_bytes", 0)
    if given in (None, _CAP_BYTES):
        return "Make the first bucket smaller: lower bucket_cap_mb."
    return "Make the first bucket smaller: leave bucket_cap_mb unset (DDP's first is 1 MiB then), or lower it."
