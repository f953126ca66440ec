"""Ranks whose GPU takes longer for the same kernels than the others' GPUs."""

from __future__ import annotations

import numpy as np

from dptrace.analysis.compute_findings.context import ComputeContext
from dptrace.analysis.findings.finding import Finding
from dptrace.analysis.kernels.names import kernel_names
from dptrace.core.units import duration

__all__ = ["uneven_ranks"]

_MIN_RATIO = 1.03
"""Slowness below which GPUs of one kind differ anyway."""
_ADVICE = (
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
    evidence = {"rank": timeline.rank, "ratio": round(float(ratio), 4), "kernel": name}
    return [context.finding("slow_gpu", text, _ADVICE, excess.sum() * context.steps, evidence)]
