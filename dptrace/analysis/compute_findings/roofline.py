"""Matrix products, convolutions and attention far below what the GPU's arithmetic and memory allow, and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from math import prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.compute_findings.context import ComputeContext, StepKernels, Work
from dptrace.analysis.findings.evidence import ElementwiseChains, Product, SlowProducts, UnfusedAttention
from dptrace.analysis.findings.finding import Finding
from dptrace.core.intervals import Int64, sums
from dptrace.core.units import duration, plural, share
from dptrace.model.flops import Cost
from dptrace.model.gpu_peaks import GpuPeak, gpu_peak
from dptrace.timeline.model import Phase

# Attention in separate kernels: a product, a softmax and a product, which keep all scores in memory.


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
    return [context.finding("unfused_attention", text, _ADVICE, saved, UnfusedAttention(operators=operators))]


def in_unfused_attention(kernels: StepKernels) -> NDArray[np.bool_]:
    """Return which kernels compute, read or write the scores of attention that is not fused.

    Scores are what a softmax normalizes that one batched product returns and another one takes.
    """
    softmax = {scores for work in kernels.work if work.operator in _SOFTMAX for scores in _pointwise(work)}
    products = [*filter(None, map(_of_product, kernels.work))]
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
"""Products that a finding names."""


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
    advice_if_compiled: str = ""
    """Instead, where torch.compile is in use."""


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
        "Look at layout and kernel (`dptrace kernels --by kernel --full-names`): transposed copies before the product, "
        "an old cuBLAS, or a kernel chosen without autotuning (mode='max-autotune').",
    ),
)
PRODUCT_KINDS = tuple(reason.kind for reason in _REASONS)


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
    number = {
        product.work: next(place for place, reason in enumerate(_REASONS) if reason.applies(product))
        for product in slow
    }
    slow.sort(key=lambda product: (number[product.work], -product.cost_ns))
    return [(reason, list(group)) for reason, group in groupby(slow, key=lambda product: number[product.work])]


def _finding(context: ComputeContext, reason: _Reason, products: Sequence[_Product]) -> Finding:
    ns, roof = sum(product.ns for product in products), sum(product.roof_ns for product in products)
    examples = "; ".join(_example(context, product) for product in products[:_EXAMPLES])
    calls = context.per_step(sum(product.calls for product in products))
    because = f", {reason.text}" if reason.text else ""
    text = (
        f"{calls:,.0f} {_noun(products)} per step run at {share(roof / ns)} of the roofline{because}: {examples}. "
        f"The cost is what {share(_REACHABLE)} of it would save"
    )
    evidence = SlowProducts(
        products=[
            Product(
                operator=product.work.operator,
                input_dims=[list(one) if isinstance(one, tuple) else one for one in product.work.call.dims],
                dtype=_cost(product).dtype,
                calls_per_step=context.per_step(product.calls),
                share_of_roofline=round(product.roof_ns / product.ns, 4),
            )
            for product in products[:_EXAMPLES]
        ]
    )
    advice = (context.is_compiled and reason.advice_if_compiled) or reason.advice
    return context.finding(reason.kind, text, advice, sum(p.cost_ns for p in products), evidence)


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


def _products(context: ComputeContext) -> Iterator[_Product]:
    """Yield the products of all devices with a known peak; the kernels of one call count together."""
    kernels = context.kernels
    # Those of attention that is not fused are a finding of their own.
    chosen = kernels.of_work([_has_roofline(work) for work in kernels.work]) & ~in_unfused_attention(kernels)
    kernels = kernels.take(chosen & (kernels.call >= 0))
    peaks = [gpu_peak(timeline.gpu) if timeline.gpu else None for timeline in context.timelines]
    for peak in {peak.name: peak for peak in peaks if peak is not None}.values():
        devices = [device for device, own in enumerate(peaks) if own is not None and own.name == peak.name]
        yield from _products_on(peak, kernels.take(np.isin(kernels.device, devices)))


def _products_on(peak: GpuPeak, kernels: StepKernels) -> Iterator[_Product]:
    whole = [_whole(work) for work in kernels.work]
    numbers = {work: number for number, work in enumerate(dict.fromkeys(whole))}
    product = kernels.of_work([numbers[work] for work in whole], np.int64)
    ns = sums(product, kernels.ns, len(numbers))
    of_call = np.unique(product * (int(kernels.call.max(initial=0)) + 1) + kernels.call, return_index=True)[1]
    calls = np.bincount(product[of_call], minlength=len(numbers))
    names: dict[int, list[str]] = {}
    for index in np.unique(kernels.index).tolist():
        names.setdefault(numbers[whole[index]], []).append(kernels.work[index].kernel)
    for work, number in numbers.items():
        roof = _roof_ns(work, peak) if calls[number] else None
        if roof is not None:
            count = int(calls[number])
            yield _Product(work, peak, count, int(ns[number]), roof * count, tuple(names[number]))


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


# Chains of elementwise kernels, each of which reads from memory what the one before has just written.

_FUSIBLE = frozenset({"elementwise", "copy", "normalization", "softmax", "reduction"})
"""Kinds of operators whose time is that of their memory traffic."""
_MIN_LENGTH = 3
"""Kernels of a chain, at least, that fusing them is worth."""
_COMPARED = 12
"""Operators of a chain that distinguish it from others of its length."""
_PRIME = 1_000_003
"""Base of the hash of a sequence of kernels."""
_MAX_RATIO = 4
"""Ratio of bytes between neighbors beyond which they do not work on the same tensor."""
_ELEMENTWISE_ADVICE = (
    "Compile the part of the model around them (torch.compile fuses such chains into one kernel), or use fused "
    "operators (rms_norm, fused rotary embeddings)."
)
_BETWEEN_GRAPHS_ADVICE = (
    "They run outside the compiled graphs: find what ends these (TORCH_LOGS=graph_breaks), or use fused operators "
    "(rms_norm, fused rotary embeddings)."
)
_OPTIMIZER_ADVICE = "Give the optimizer fused=True or foreach=True: it then updates all parameters with few kernels."


def elementwise_chains(context: ComputeContext) -> list[Finding]:
    """Find chains of neighbors on a stream, in the optimizer and elsewhere, and what one kernel for each would save.

    One kernel instead of a chain moves at least the bytes of its costliest part, so the rest is saved.
    """
    kernels = context.kernels.take(_in_order(context.kernels))
    chain, size = _chains(kernels)
    if not len(size):
        return []
    first = np.append(0, np.cumsum(size)[:-1])
    ns = kernels.ns[chain]
    saved = np.add.reduceat(ns, first) - np.maximum.reduceat(ns, first)
    in_optimizer = kernels.phase[chain[first]] == Phase.OPTIMIZER
    found = []
    for kind, chosen, advice in (
        ("elementwise_chains", ~in_optimizer, _BETWEEN_GRAPHS_ADVICE if context.is_compiled else _ELEMENTWISE_ADVICE),
        ("unfused_optimizer", in_optimizer, _OPTIMIZER_ADVICE),
    ):
        if not chosen.any():
            continue
        worst, worth = _costliest(kernels, chain, first[chosen], size[chosen], saved[chosen])
        chains = plural(round(context.per_step(int(chosen.sum()))), "chain")
        text = (
            f"{context.per_step(int(size[chosen].sum())):,.0f} elementwise kernels per step follow each other in "
            f"{chains}{' of the optimizer' * (kind == 'unfused_optimizer')}; the costliest is {worst}, "
            f"{duration(context.per_step(worth))} per step"
        )
        found.append(context.finding(kind, text, advice, int(saved[chosen].sum()), ElementwiseChains(chain=worst)))
    return found


def removed_by_fusion(context: ComputeContext, in_optimizer: bool) -> NDArray[np.bool_]:
    """Return which kernels of the chains in the optimizer, or elsewhere, would go if each chain were one kernel."""
    order = _in_order(context.kernels)
    kernels, gone = context.kernels.take(order), np.zeros(len(context.kernels), np.bool_)
    chain, size = _chains(kernels)
    if not len(size):
        return gone
    first = np.append(0, np.cumsum(size)[:-1])
    number = np.repeat(np.arange(len(size)), size)
    # The longest of each chain stays: after sorting by chain and length, the last of each.
    longest = np.lexsort((kernels.ns[chain], number))[first + size - 1]
    goes = (kernels.phase[chain[first]] == Phase.OPTIMIZER)[number] == in_optimizer
    goes[longest] = False
    gone[order[chain[goes]]] = True
    return gone


def _in_order(kernels: StepKernels) -> Int64:
    """Return the order in which neighbors on a stream are adjacent."""
    return np.lexsort((kernels.start_ns, kernels.lane, kernels.device))


def _costliest(kernels: StepKernels, chain: Int64, first: Int64, size: Int64, saved: Int64) -> tuple[str, int]:
    """Return the operators of the chain that costs most in all its places together, and what it costs there."""
    operators = {name: number for number, name in enumerate(dict.fromkeys(work.operator for work in kernels.work), 1)}
    number = kernels.of_work([operators[work.operator] for work in kernels.work], np.int64)[chain]
    key = size.copy()
    for place in range(min(int(size.max()), _COMPARED)):
        reached = size > place
        key[reached] = key[reached] * _PRIME + number[first[reached] + place]
    _, one, pattern = np.unique(key, return_index=True, return_inverse=True)
    total = sums(pattern.reshape(-1), saved, len(one))
    most = int(total.argmax())
    begin = int(first[one[most]])
    return _name(kernels, chain[begin : begin + int(size[one[most]])]), int(total[most])


def _chains(kernels: StepKernels) -> tuple[Int64, Int64]:
    """Return the kernels of all chains, one chain after the other, and the length of each.

    A chain ends where the device, stream, step or phase changes, at a kernel of another kind, and where the bytes of
    two neighbors differ too much.
    """
    fusible = kernels.of_work([_is_fusible(work) for work in kernels.work]) & ~in_unfused_attention(kernels)
    moved = kernels.of_work([work.cost.bytes or 0 if work.cost else 0 for work in kernels.work], np.float64)
    rows = np.flatnonzero(fusible)
    if not len(rows):
        return rows, rows
    same = np.diff(rows) == 1
    for column in (kernels.device, kernels.lane, kernels.step, kernels.phase):
        same &= np.diff(column[rows]) == 0
    ratio = moved[rows[1:]] / moved[rows[:-1]]
    same &= (ratio <= _MAX_RATIO) & (ratio >= 1 / _MAX_RATIO)
    starts = np.flatnonzero(np.append(True, ~same))
    length = np.diff(np.append(starts, len(rows)))
    long = length >= _MIN_LENGTH
    return rows[np.repeat(long, length)], length[long]


def _is_fusible(work: Work) -> bool:
    return work.cost is not None and work.cost.kind in _FUSIBLE and bool(work.cost.bytes)


def _name(kernels: StepKernels, chain: Int64) -> str:
    """Return ``mul → add → mul (2 × …)`` for a chain: its operators in order, at most six."""
    names = [kernels.work[index].operator.removeprefix("aten::") for index in kernels.index[chain].tolist()]
    return " → ".join(names[:6]) + (f" → {len(names) - 6} more" if len(names) > 6 else "")
