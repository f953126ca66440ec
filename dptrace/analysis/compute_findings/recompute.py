"""The price of activation checkpointing: forward work that backward repeats."""

from __future__ import annotations

from dptrace.analysis.compute_findings.context import ComputeContext
from dptrace.analysis.findings.finding import Finding
from dptrace.core.units import duration, share
from dptrace.timeline.model import Phase

__all__ = ["recompute"]

_ADVICE = (
    "It saves memory. If memory is left, checkpoint fewer blocks, or only what is cheap to repeat (selective "
    "checkpointing keeps matrix products and attention)."
)


def recompute(context: ComputeContext) -> list[Finding]:
    """Find forward work that is computed again in backward."""
    kernels = context.kernels
    again = int(kernels.ns[kernels.recompute].sum())
    backward = int(kernels.ns[kernels.phase == Phase.BACKWARD].sum())
    if not again or not backward:
        return []
    text = (
        f"Backward repeats forward work for {duration(context.per_step(again))} per step, "
        f"{share(again / backward)} of its compute"
    )
    return [context.finding("recompute", text, _ADVICE, again)]
