"""Chains of elementwise kernels, each of which reads from memory what the one before has just written."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.compute_findings.context import ComputeContext
from dptrace.analysis.compute_findings.step_kernels import StepKernels, Work
from dptrace.analysis.compute_findings.unfused_attention import in_unfused_attention
from dptrace.analysis.findings.finding import Finding
from dptrace.core.intervals import Int64
from dptrace.core.units import duration, plural
from dptrace.timeline.model import Phase

__all__ = ["elementwise_chains", "removed_by_fusion"]

_FUSIBLE = frozenset({"elementwise", "copy", "normalization", "softmax", "reduction"})
"""Kinds of operators whose time is that of their memory traffic."""
_MIN_LENGTH = 3
_COMPARED = 12
"""Operators of a chain that distinguish it from others of its length."""
_PRIME = 1_000_003
_MAX_RATIO = 4
"""Ratio of bytes between neighbors beyond which they do not work on the same tensor."""
_ADVICE = (
    "Compile the part of the model around them (torch.compile fuses such chains into one kernel), or use fused "
    "operators (rms_norm, fused rotary embeddings)."
)
_OPTIMIZER_ADVICE = "Give the optimizer fused=True or foreach=True: it then updates all parameters with few kernels."


def elementwise_chains(context: ComputeContext) -> list[Finding]:
    """Find chains of neighbors on a stream, in the optimizer and elsewhere, and what one kernel for each would save.

    One kernel instead of a chain moves at least the bytes of its costliest part, so the rest is saved.
    """
    kernels = context.kernels.filter(_in_order(context.kernels))
    chain, size = _chains(kernels)
    if not len(size):
        return []
    first = np.append(0, np.cumsum(size)[:-1])
    ns = kernels.ns[chain]
    saved = np.add.reduceat(ns, first) - np.maximum.reduceat(ns, first)
    in_optimizer = kernels.phase[chain[first]] == Phase.OPTIMIZER
    found = []
    for kind, chosen, advice in (
        ("elementwise_chains", ~in_optimizer, _ADVICE),
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
        found.append(context.finding(kind, text, advice, int(saved[chosen].sum()), {"chain": worst}))
    return found


def removed_by_fusion(context: ComputeContext, in_optimizer: bool) -> NDArray[np.bool_]:
    """Return which kernels of the chains in the optimizer, or elsewhere, would go if each chain were one kernel."""
    order = _in_order(context.kernels)
    kernels, gone = context.kernels.filter(order), np.zeros(len(context.kernels), np.bool_)
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
    order: Int64 = np.lexsort((kernels.start_ns, kernels.lane, kernels.device))
    return order


def _costliest(kernels: StepKernels, chain: Int64, first: Int64, size: Int64, saved: Int64) -> tuple[str, int]:
    """Return the operators of the chain that costs most in all its places together, and what it costs there."""
    operators = {name: number for number, name in enumerate(dict.fromkeys(work.operator for work in kernels.work), 1)}
    number = kernels.of_work([operators[work.operator] for work in kernels.work], np.int64)[chain]
    key = size.copy()
    for place in range(min(int(size.max()), _COMPARED)):
        reached = size > place
        key[reached] = key[reached] * _PRIME + number[first[reached] + place]
    _, one, pattern = np.unique(key, return_index=True, return_inverse=True)
    total = np.zeros(len(one), np.int64)
    np.add.at(total, pattern.reshape(-1), saved)
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
