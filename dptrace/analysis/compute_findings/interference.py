"""Compute that is slower while communication runs, measured on kernels that ran both ways."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.compute_findings.context import ComputeContext
from dptrace.analysis.compute_findings.step_kernels import StepKernels
from dptrace.analysis.findings.finding import Finding
from dptrace.core.intervals import Int64, covered
from dptrace.core.units import duration, share
from dptrace.timeline.model import Phase

__all__ = ["interference", "slowdown_ns"]

_OVERLAPPED = 0.9
"""Share of a kernel under communication from which it counts as overlapped."""
_MIN_KERNELS = 4
"""Kernels of one kind that must have run each way."""
_MAX_SPREAD = 1.5
"""Ratio of the 90th to the 10th percentile without communication beyond which kernels of one name do unequal work."""
_MIN_COMPARED = 0.2
"""Share of the overlapped compute that must be comparable."""
_ADVICE = (
    "Communication kernels take multiprocessors and memory bandwidth from compute. Try fewer channels "
    "(NCCL_MAX_NCHANNELS, NCCL_NTHREADS), collectives by copy engines or in the switch (NVLink SHARP), or launch the "
    "communication where compute does not need them."
)


def interference(context: ComputeContext) -> list[Finding]:
    """Find how much longer kernels take under communication than without it."""
    kernels = context.kernels
    if not len(kernels):
        return []
    overlapped, usual = _compared(context)
    compared = overlapped & (usual > 0)
    ns = kernels.ns
    now, alone = int(ns[compared].sum()), float(usual[compared].sum())
    if not alone or now < _MIN_COMPARED * int(ns[overlapped].sum()):
        return []
    cost = now - alone
    text = (
        f"Compute takes {now / alone:.2f} times as long while communication runs: {duration(context.per_step(now))} "
        f"per step instead of {duration(context.per_step(alone))}, over the {share(now / int(ns[overlapped].sum()))} "
        "of overlapped compute whose kernels also ran without communication"
    )
    return [context.finding("interference", text, _ADVICE, cost, {"ratio": round(now / alone, 4)})]


def slowdown_ns(context: ComputeContext) -> Int64:
    """Return by how many ns each kernel under communication is longer than it usually is without."""
    overlapped, usual = _compared(context)
    return np.where(overlapped & (usual > 0), context.kernels.ns - usual, 0)


def _compared(context: ComputeContext) -> tuple[NDArray[np.bool_], Int64]:
    """Return which kernels run under communication, and what each takes without; 0 where that is unknown."""
    under = _share_under_communication(context, context.kernels)
    overlapped, free = under >= _OVERLAPPED, under == 0
    return overlapped, _usual_ns(context.kernels, overlapped, free)


def _share_under_communication(context: ComputeContext, kernels: StepKernels) -> NDArray[np.float64]:
    under = np.zeros(len(kernels))
    for device, communication in enumerate(context.communication):
        own = kernels.device == device
        start, end = kernels.start_ns[own], kernels.end_ns[own]
        under[own] = (covered(communication, end) - covered(communication, start)) / np.maximum(end - start, 1)
    return under


def _usual_ns(kernels: StepKernels, overlapped: NDArray[np.bool_], free: NDArray[np.bool_]) -> Int64:
    """Return for each kernel the median time of its kind without communication; 0 where too few ran each way.

    A kind is the same work in the same phase. Without recorded shapes, kernels of one name may do unequal work, and
    GPUs may differ: kinds whose times vary without any communication are left out.
    """
    distinct, kind = np.unique(kernels.index * len(Phase) + kernels.phase, return_inverse=True)
    kind, kinds, ns = kind.reshape(-1), len(distinct), kernels.ns
    enough = np.minimum(*(np.bincount(kind[chosen], minlength=kinds) for chosen in (overlapped, free))) >= _MIN_KERNELS
    rows = np.flatnonzero(free & enough[kind])
    rows = rows[np.lexsort((ns[rows], kind[rows]))]
    edges = np.searchsorted(kind[rows], np.arange(kinds + 1))
    count, some = np.diff(edges), np.flatnonzero(enough)
    # Those of one kind stand together, ascending, so that a quantile is a place among them.
    low, middle, high = (ns[rows[edges[some] + (count[some] - 1) * percent // 100]] for percent in (10, 50, 90))
    usual = np.zeros(kinds, np.int64)
    usual[some] = np.where(high <= _MAX_SPREAD * low, middle, 0)
    return usual[kind]
