"""Kernels so short that the GPU is idle between them, since each launch takes longer than the kernel."""

from __future__ import annotations

import numpy as np

from dptrace.analysis.compute_findings.context import ComputeContext
from dptrace.analysis.findings.finding import Finding
from dptrace.core.intervals import Int64
from dptrace.core.units import duration, share
from dptrace.timeline.model import Kind, Timeline

__all__ = ["short_kernels"]

_SHORT_NS = 10_000
"""Length below which a launch from Python, some 5 to 10 µs, takes longer than the kernel."""
_LONGEST_GAP_NS = 100_000
"""Idle time beyond it is not a launch's: the host waited, loaded data or ran Python."""
_ADVICE = (
    "Launch several at once: capture the step in CUDA graphs (torch.compile(mode='reduce-overhead'), "
    "torch.cuda.make_graphed_callables), fuse them (torch.compile), or use fused or foreach optimizers."
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
    return [context.finding("short_kernels", text, _ADVICE, idle)]


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
