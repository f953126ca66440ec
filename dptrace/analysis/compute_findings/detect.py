"""What makes the compute of a run slower than it could be, most expensive first.

The findings on one run overlap where two causes share time: a small matrix product is far below the roofline, and also
a short kernel. Each cost is how much shorter a step would be without this cause alone, if compute set its length.
"""

from __future__ import annotations

from collections.abc import Sequence

from dptrace.analysis.compute_findings.context import ComputeContext
from dptrace.analysis.compute_findings.copies import pageable_copies
from dptrace.analysis.compute_findings.elementwise import elementwise_chains
from dptrace.analysis.compute_findings.interference import interference
from dptrace.analysis.compute_findings.recompute import recompute
from dptrace.analysis.compute_findings.roofline import far_below_the_roofline
from dptrace.analysis.compute_findings.short_kernels import short_kernels
from dptrace.analysis.compute_findings.uneven_ranks import uneven_ranks
from dptrace.analysis.compute_findings.unfused_attention import unfused_attention
from dptrace.analysis.findings.finding import MIN_SHARE, Finding
from dptrace.timeline.host_calls import OperatorCalls
from dptrace.timeline.model import Timeline

__all__ = ["compute_findings"]

_DETECTORS = (
    unfused_attention,
    far_below_the_roofline,
    elementwise_chains,
    short_kernels,
    uneven_ranks,
    interference,
    recompute,
    pageable_copies,
)


def compute_findings(timelines: Sequence[Timeline], calls: Sequence[OperatorCalls]) -> tuple[Finding, ...]:
    """Return the findings that cost at least one percent of a step.

    Args:
        timelines: the devices of a run.
        calls: the calls of each one's rank, in the same order; empty ones allow fewer findings.
    """
    pairs = [(t, own) for t, own in zip(timelines, calls, strict=True) if len(t.windows) and not t.on_cpu]
    if not pairs:
        return ()
    context = ComputeContext(tuple(t for t, _ in pairs), tuple(own for _, own in pairs))
    found = [finding for detector in _DETECTORS for finding in detector(context)]
    return tuple(sorted((f for f in found if f.share >= MIN_SHARE), key=lambda finding: -finding.cost_ns))
