"""Attention in separate kernels: a product, a softmax and a product, which keep all scores in memory."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.compute_findings.context import ComputeContext
from dptrace.analysis.compute_findings.step_kernels import StepKernels, Work
from dptrace.analysis.findings.finding import Finding
from dptrace.core.units import duration, share
from dptrace.model.gpu_peaks import gpu_peak

__all__ = ["attention_savings_ns", "in_unfused_attention", "unfused_attention"]

_REACHED = 0.6
"""Share of the arithmetic's peak that fused attention reaches on long sequences."""
_SOFTMAX = ("aten::_softmax", "aten::_softmax_backward_data")
_PRODUCTS = ("aten::bmm", "aten::baddbmm")
_POINTWISE = ("elementwise", "copy", "softmax")
_ADVICE = (
    "Call torch.nn.functional.scaled_dot_product_attention (Hugging Face: attn_implementation='sdpa'): it keeps the "
    "scores on chip. Where it is called already, torch.nn.attention.sdpa_kernel warns why no fused backend takes it."
)

_Scores = tuple[int, ...]
"""What identifies a matrix of scores for all heads, in whatever layout: its elements, and rows and columns sorted."""


def unfused_attention(context: ComputeContext) -> list[Finding]:
    """Find attention whose scores are written to memory, and what one kernel for all of it would save."""
    kernels = context.kernels
    own = in_unfused_attention(kernels)
    if not own.any():
        return []
    ns, whole = int(kernels.ns[own].sum()), int(kernels.ns.sum())
    used = np.unique(kernels.index[own]).tolist()
    operators = sorted({kernels.work[index].operator.removeprefix("aten::") for index in used})
    text = (
        f"Attention is not fused: {context.per_step(int(own.sum())):,.0f} kernels per step ({', '.join(operators)}) "
        f"compute its scores, write them to memory and read them back; they take {duration(context.per_step(ns))}, "
        f"{share(ns / whole)} of compute"
    )
    saved = float(attention_savings_ns(context).sum())
    return [context.finding("unfused_attention", text, _ADVICE, saved, {"operators": operators})]


def in_unfused_attention(kernels: StepKernels) -> NDArray[np.bool_]:
    """Return which kernels compute, read or write the scores of attention that is not fused.

    Scores are what a softmax normalizes that one batched product returns and another one takes.
    """
    softmax = {scores for work in kernels.work if work.operator in _SOFTMAX for scores in _pointwise(work)}
    products = [scores for work in kernels.work if (scores := _of_product(work))]
    known = softmax & {result for result, *_ in products} & {one for _, *factors in products for one in factors}
    return kernels.of_work([not known.isdisjoint(_pointwise(work) + _of_product(work)) for work in kernels.work])


def attention_savings_ns(context: ComputeContext) -> NDArray[np.float64]:
    """Return by how many ns each kernel would be shorter if such attention were one kernel.

    It spends no time on scores in memory, and computes its products at a usual rate, where the GPU's peak is known.
    """
    kernels = context.kernels
    saved = kernels.ns.astype(np.float64)
    for device, timeline in enumerate(context.timelines):
        peak = gpu_peak(timeline.gpu) if timeline.gpu else None
        needed = []
        for work in kernels.work:
            rate = peak.flops_per_s(work.cost.dtype) if peak and work.cost else None
            flops = (work.cost.flops or 0) if work.cost else 0
            needed.append(flops / (_REACHED * rate) * 1e9 if rate else np.inf if flops else 0.0)
        rows = kernels.device == device
        saved[rows] -= kernels.of_work(needed, np.float64)[rows]
    return np.where(in_unfused_attention(kernels), np.maximum(saved, 0), 0.0)


def _pointwise(work: Work) -> list[_Scores]:
    """Return what an operator without a product reads, as if it were scores."""
    if work.cost is None or work.cost.kind not in _POINTWISE:
        return []
    try:
        return [_scores(dims) for dims in map(work.call.sizes, work.call.tensors()) if len(dims) > 2]
    except (TypeError, ValueError):
        return []  # an input that its bytes do not depend on is no tensor: strangers' files


def _of_product(work: Work) -> list[_Scores]:
    """Return the result and the factors of a batched product, as if each were scores; none for another operator."""
    if work.cost is None or work.operator not in _PRODUCTS:
        return []
    batch, m, n, k = work.cost.batch, work.cost.m, work.cost.n, work.cost.k
    return [_scores((batch, *sizes)) for sizes in ((m, n), (m, k), (k, n))]


def _scores(dims: tuple[int, ...]) -> _Scores:
    return prod(dims), *sorted(dims[-2:])
