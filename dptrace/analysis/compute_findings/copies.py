"""Copies between pageable host memory and the GPU, which block the host and run below the link's speed."""

from __future__ import annotations

import re

import numpy as np

from dptrace.analysis.compute_findings.context import ComputeContext
from dptrace.analysis.findings.finding import Finding
from dptrace.core.intervals import covered
from dptrace.core.units import duration
from dptrace.timeline.model import Kind

__all__ = ["pageable_copies"]

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
    return [context.finding("pageable_copies", text, _ADVICE, exposed, {"copies": sorted(set(named))})]
