"""Matrix products, convolutions and attention far below what the GPU's arithmetic and memory allow, and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from math import prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.compute_findings.context import ComputeContext
from dptrace.analysis.compute_findings.step_kernels import StepKernels, Work
from dptrace.analysis.compute_findings.unfused_attention import in_unfused_attention
from dptrace.analysis.findings.finding import Finding
from dptrace.core.units import duration, plural, share
from dptrace.model.flops import Cost
from dptrace.model.gpu_peaks import GpuPeak, gpu_peak

__all__ = ["far_below_the_roofline", "product_savings_ns"]

_KINDS = frozenset({"matmul", "convolution", "attention"})
_REACHABLE = 0.6
"""Share of the roofline that large, aligned products reach: 47 to 75 % were measured on H100."""
_FAR_BELOW = 0.4
"""Share of the roofline below which a product counts as far below it."""
_TILE = 128
"""Rows and columns of the output that one multiprocessor usually computes at a time."""
_ALIGNED_BYTES = 16
"""What tensor cores load at once: rows whose length is no multiple of it need slower kernels."""
_WITHOUT_TENSOR_CORES = re.compile(r"sgemm|simt|ffma|_SS_|dgemm", re.IGNORECASE)
_EXAMPLES = 3


class _Product(msgspec.Struct, frozen=True):
    """All calls of one operator with the same inputs on GPUs of one kind."""

    work: Work
    peak: GpuPeak
    calls: int
    ns: int
    """Time of all calls."""
    roof_ns: float
    """Time of all calls on the roofline."""
    kernels: tuple[str, ...]

    @property
    def cost_ns(self) -> float:
        """What a usual share of the roofline would save."""
        return max(self.ns - self.roof_ns / _REACHABLE, 0.0)


class _Reason(msgspec.Struct, frozen=True):
    """Why products are slow, and what to do."""

    kind: str
    applies: Callable[[_Product], bool]
    text: str
    """Empty where sizes and kernels show none."""
    advice: str


def _is_fp32_without_tensor_cores(product: _Product) -> bool:
    tensor_cores = "tf32" in product.peak.tflops or "bf16" in product.peak.tflops or "fp16" in product.peak.tflops
    named = any(_WITHOUT_TENSOR_CORES.search(name) for name in product.kernels)
    return _cost(product).dtype in ("fp32", "fp64") and tensor_cores and named


def _is_misaligned(product: _Product) -> bool:
    item = {"fp32": 4, "fp64": 8, "fp8": 1, "int8": 1}.get(_cost(product).dtype, 2)
    inner = [size for size in (_cost(product).n, _cost(product).k) if size > 1]
    return any(size * item % _ALIGNED_BYTES for size in inner)


def _is_small(product: _Product) -> bool:
    cost = _cost(product)
    tiles = prod(-(-size // _TILE) for size in (cost.m, cost.n)) * (cost.batch or 1)
    return 0 < tiles < product.peak.sms * product.peak.part


# The first reason that applies is given.
_REASONS = (
    _Reason(
        "fp32_products",
        _is_fp32_without_tensor_cores,
        "in float32 without tensor cores",
        "Allow TF32 (torch.backends.cuda.matmul.fp32_precision = 'tf32') or train in bf16 (torch.autocast).",
    ),
    _Reason(
        "misaligned_products",
        _is_misaligned,
        f"with rows that are not a multiple of {_ALIGNED_BYTES} bytes, which need slower kernels",
        "Pad the sizes to a multiple of 8 (16-bit types) or 4 (32-bit); a vocabulary to a multiple of 64.",
    ),
    _Reason(
        "small_products",
        _is_small,
        f"with fewer output tiles of {_TILE} × {_TILE} than the GPU has multiprocessors",
        "Give each call more work: a larger micro-batch, projections that are joined (one matrix for q, k and v), or "
        "grouped and batched products.",
    ),
    _Reason(
        "slow_attention",
        lambda product: _cost(product).kind == "attention",
        "",
        "Use the newest kernel for this GPU (on Hopper FlashAttention 3 or torch's cuDNN backend, "
        "torch.nn.attention.sdpa_kernel); short sequences and small heads do not reach 60 %.",
    ),
    _Reason(
        "slow_convolutions",
        lambda product: _cost(product).kind == "convolution",
        "",
        "Keep images in channels_last, let torch.backends.cudnn.benchmark (MIOpen: MIOPEN_FIND_MODE) choose by "
        "timing, and pad channels to a multiple of 8.",
    ),
    _Reason(
        "slow_products",
        lambda product: True,
        "although they are large and aligned",
        "Look at layout and kernel (`dptrace kernels --by kernel --full-names`): transposed copies before the product, "
        "an old cuBLAS, or a kernel chosen without autotuning (torch.compile(mode='max-autotune')).",
    ),
)


def far_below_the_roofline(context: ComputeContext) -> list[Finding]:
    """Find products below 40 % of the roofline, by reason; none where the GPU's peak or the shapes are unknown."""
    return [_finding(context, _REASONS[reason], group) for reason, group in _by_reason(context)]


def product_savings_ns(context: ComputeContext, kind: str) -> NDArray[np.float64]:
    """Return by how many ns each kernel would be shorter if the products of a finding were as fast as is usual."""
    slow = [one for reason, group in _by_reason(context) if _REASONS[reason].kind == kind for one in group]
    saved = {product.work: product.cost_ns / max(product.ns, 1) for product in slow}
    kernels = context.kernels
    share = kernels.of_work([saved.get(_whole(work), 0.0) for work in kernels.work], np.float64)
    return np.where(kernels.call >= 0, share * kernels.ns, 0.0)


def _by_reason(context: ComputeContext) -> list[tuple[int, list[_Product]]]:
    """Return the slow products, costliest first, by the place of their reason."""
    slow = [product for product in _products(context) if product.roof_ns < _FAR_BELOW * product.ns]
    number = {product.work: _reason(product) for product in slow}
    slow.sort(key=lambda product: (number[product.work], -product.cost_ns))
    return [(reason, list(group)) for reason, group in groupby(slow, key=lambda product: number[product.work])]


def _reason(product: _Product) -> int:
    return next(place for place, reason in enumerate(_REASONS) if reason.applies(product))


def _finding(context: ComputeContext, reason: _Reason, products: Sequence[_Product]) -> Finding:
    ns, roof = sum(product.ns for product in products), sum(product.roof_ns for product in products)
    examples = "; ".join(_example(context, product) for product in products[:_EXAMPLES])
    calls = context.per_step(sum(product.calls for product in products))
    because = f", {reason.text}" if reason.text else ""
    text = (
        f"{calls:,.0f} {_noun(products)} per step run at {share(roof / ns)} of the roofline{because}: {examples}. "
        f"The cost is what {share(_REACHABLE)} of it would save"
    )
    evidence = {
        "products": [
            {
                "operator": product.work.operator,
                "input_dims": [list(one) if isinstance(one, tuple) else one for one in product.work.call.dims],
                "dtype": _cost(product).dtype,
                "calls_per_step": context.per_step(product.calls),
                "share_of_roofline": round(product.roof_ns / product.ns, 4),
            }
            for product in products[:_EXAMPLES]
        ]
    }
    return context.finding(reason.kind, text, reason.advice, sum(p.cost_ns for p in products), evidence)


def _noun(products: Sequence[_Product]) -> str:
    kinds = {_cost(product).kind for product in products}
    nouns = {"matmul": "matrix products", "convolution": "convolutions", "attention": "attention calls"}
    return " and ".join(noun for kind, noun in nouns.items() if kind in kinds)


def _example(context: ComputeContext, product: _Product) -> str:
    cost = _cost(product)
    sizes = [size for size in (cost.m, cost.n, cost.k) if size]
    batch = f"{cost.batch} × " if cost.batch > 1 else ""
    what = f" {batch}{'×'.join(map(str, sizes))}" if sizes else ""
    times = plural(round(context.per_step(product.calls)), "call")
    causal = " causal" if cost.causal else ""
    return (
        f"{product.work.operator.removeprefix('aten::')}{what} {cost.dtype}{causal} ({times}, "
        f"{duration(context.per_step(product.ns))} per step, {share(product.roof_ns / product.ns)})"
    )


def _products(context: ComputeContext) -> list[_Product]:
    """Return the products of all devices with a known peak; the kernels of one call count together."""
    kernels = context.kernels
    # Those of attention that is not fused are a finding of their own.
    chosen = kernels.of_work([_has_roofline(work) for work in kernels.work]) & ~in_unfused_attention(kernels)
    kernels = kernels.filter(chosen & (kernels.call >= 0))
    peaks = [gpu_peak(timeline.gpu) if timeline.gpu else None for timeline in context.timelines]
    found = []
    for peak in {peak.name: peak for peak in peaks if peak is not None}.values():
        devices = [device for device, own in enumerate(peaks) if own is not None and own.name == peak.name]
        found += _products_on(peak, kernels.filter(np.isin(kernels.device, devices)))
    return found


def _products_on(peak: GpuPeak, kernels: StepKernels) -> list[_Product]:
    whole = [_whole(work) for work in kernels.work]
    numbers = {work: number for number, work in enumerate(dict.fromkeys(whole))}
    product = kernels.of_work([numbers[work] for work in whole], np.int64)
    ns = np.zeros(len(numbers), np.int64)
    np.add.at(ns, product, kernels.ns)
    of_call = np.unique(product * (int(kernels.call.max(initial=0)) + 1) + kernels.call, return_index=True)[1]
    calls = np.bincount(product[of_call], minlength=len(numbers))
    names: dict[int, list[str]] = {}
    for index in np.unique(kernels.index).tolist():
        names.setdefault(numbers[whole[index]], []).append(kernels.work[index].kernel)
    found = []
    for work, number in numbers.items():
        roof = _roof_ns(work, peak) if calls[number] else None
        if roof is not None:
            count = int(calls[number])
            found.append(_Product(work, peak, count, int(ns[number]), roof * count, tuple(names[number])))
    return found


def _whole(work: Work) -> Work:
    """Return what a call computes: it may launch several kernels, which are one product."""
    return msgspec.structs.replace(work, kernel="")


def _roof_ns(work: Work, peak: GpuPeak) -> float | None:
    """Return the shortest time of a call in ns: that of its arithmetic or of its bytes, whichever is longer."""
    cost = _cost(work)
    rate = peak.flops_per_s(cost.dtype)
    return None if rate is None else max((cost.flops or 0) / rate, (cost.bytes or 0) / peak.bytes_per_s) * 1e9


def _cost(of: _Product | Work) -> Cost:
    work = of.work if isinstance(of, _Product) else of
    assert work.cost is not None
    return work.cost


def _has_roofline(work: Work) -> bool:
    cost = work.cost
    return cost is not None and cost.kind in _KINDS and cost.exact and bool(cost.flops) and bool(cost.bytes)
