"""FLOPs and bytes of fused attention: flash, memory-efficient, cuDNN, CPU, and the operators of flash-attn and AITER.

Forward: two products, Q·Kᵀ and P·V, of 2·queries·keys·d each per head. Backward: five, since the kernel computes Q·Kᵀ
again before the gradients of V, P, Q and K. Heads of K and V that several heads of Q share (grouped heads) count in the
bytes once. The source of the five is flash-attn's benchmark (Dao-AILab/flash-attention, benchmark_flash_attention.py),
which torch.utils.flop_counter follows.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dptrace.model.flops import Cost, OperatorCall, dtype_of, item_bytes, parse_bool


class Arguments(msgspec.Struct, frozen=True):
    """At which positions an attention operator has its arguments."""

    q: int = 0
    """Queries; keys and values follow."""
    causal: int = -1
    """A flag, or the number of a kind of mask (1 and 2 are causal); -1 without."""
    heads_first: bool = True
    """[batch, heads, length, d]; else [batch, length, heads, d], or [all lengths, heads, d]."""
    cumulative: int = -1
    """Cumulative lengths of the queries, then those of the keys, for sequences behind each other; -1 without."""
    longest: int = -1
    """The longest sequence of queries, then of keys."""
    window: int = -1
    """How many keys to the left and (next argument) to the right a query sees; -1 as a value: all."""
    last_aligned: bool = False
    """Whether a causal mask lets the last query see all keys; else the first query sees the first key."""
    backward: bool = False


class Shape(msgspec.Struct, frozen=True):
    """Sizes of the attention of one call."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int
    d_value: int


class Lengths(msgspec.Struct, frozen=True):
    """The lengths of the sequences of a batch: *count* pairs of (queries, keys) each."""

    parts: tuple[tuple[int, int, int], ...]
    """(count, queries, keys)."""
    exact: bool


def attended_pairs(queries: int, keys: int, left: int = -1, right: int = -1, last_aligned: bool = False) -> int:
    """Return **twice** the number of (query, key) pairs that a mask leaves, counting those on its edge half.

    A causal mask (right = 0) on n queries and n keys leaves n²/2 pairs, which is the convention of flash-attn and
    TraceLens.

    Args:
        left: how many keys before its own a query sees; -1: all.
        right: the same after its own; 0 for a causal mask.
        last_aligned: the last query's own key is the last one, instead of the first query's the first.

    >>> attended_pairs(4, 4), attended_pairs(4, 4, right=0), attended_pairs(2, 4, right=0, last_aligned=True)
    (32, 16, 12)
    """
    shift = keys - queries if last_aligned else 0
    upper = 2 * queries * keys if right < 0 else _below(queries, keys, shift + right)
    lower = 0 if left < 0 else _below(queries, keys, shift - left)
    return max(0, upper - lower)


def _below(queries: int, keys: int, offset: int) -> int:
    """Return twice the area of {(i, j): j <= i + offset} within queries × keys."""

    # The integral of clip(x, 0, keys): x²/2 up to keys, a straight line after it. Of 3 keys it is 2 at x = 2, 4.5 at
    # x = 3 and 7.5 at x = 4. Twice, it stays an integer.
    def twice_integral(x: int) -> int:
        inside = min(max(x, 0), keys)
        return inside * inside + 2 * keys * max(0, x - keys)

    return twice_integral(queries + offset) - twice_integral(offset)


def _shape(call: OperatorCall, where: Arguments) -> Shape | None:
    q, k, v = (call.sizes(where.q + index) for index in range(3))
    if len(q) == 3:  # sequences behind each other, without a dimension for the batch
        q, k, v = (1, *q), (1, *k), (1, *v)
    if not len(q) == len(k) == len(v) == 4:
        return None
    heads, length = (1, 2) if where.heads_first else (2, 1)
    return Shape(q[0], q[heads], k[heads], q[length], k[length], q[3], v[3])


def _lengths(call: OperatorCall, where: Arguments, shape: Shape) -> Lengths:
    """Return the lengths of the sequences: recorded ones, or a lower bound for sequences behind each other.

    Of those, the file has number, sum and longest one. Equal lengths cost least, so all others are taken as equal.
    """
    if where.cumulative < 0 or not call.has_tensor(where.cumulative):
        return Lengths(((shape.batch, shape.queries, shape.keys),), exact=True)
    count = call.sizes(where.cumulative)[0] - 1
    longest = [int(call.text(where.longest + index) or 0) for index in range(2)]
    totals = (shape.queries, shape.keys)
    if count <= 1:
        return Lengths(((1, *totals),), exact=True)
    if all(total == count * most for total, most in zip(totals, longest, strict=True)):
        return Lengths(((count, longest[0], longest[1]),), exact=True)
    first = [min(total, most) for total, most in zip(totals, longest, strict=True)]
    rest = [(total - most) // (count - 1) for total, most in zip(totals, first, strict=True)]
    return Lengths(((1, first[0], first[1]), (count - 1, rest[0], rest[1])), exact=False)


def _sees(call: OperatorCall, where: Arguments) -> tuple[bool, int, int]:
    """Return whether the mask is causal, and how many keys a query sees to the left and to the right."""
    text = call.text(where.causal) if where.causal >= 0 else ""
    causal = parse_bool(text) or text.strip() == "2"
    left, right = (int(call.text(where.window + index) or -1) if where.window >= 0 else -1 for index in range(2))
    return causal, left, 0 if causal else right


def _formula(where: Arguments) -> Callable[[OperatorCall], Cost | None]:
    def formula(call: OperatorCall) -> Cost | None:
        shape = _shape(call, where)
        if shape is None:
            return None
        lengths = _lengths(call, where, shape)
        causal, left, right = _sees(call, where)
        last = where.last_aligned or call.text(where.causal).strip() == "2"
        seen = sum(count * attended_pairs(n, m, left, right, last) for count, n, m in lengths.parts)
        full = sum(count * 2 * n * m for count, n, m in lengths.parts)
        # Per pair, head and product 2·d: `seen` and `full` are twice the pairs.
        counted, kept = ((3, 2) if where.backward else (1, 1)), ((2, 2) if where.backward else (1, 1))
        per_pair = shape.heads * (counted[0] * shape.d + counted[1] * shape.d_value)
        return Cost(
            flops=per_pair * seen,
            bytes=_bytes(call, where, shape),
            dtype=dtype_of(call.dtype(where.q)),
            kind="attention",
            counted_flops=per_pair * full,
            model_flops=shape.heads * (kept[0] * shape.d + kept[1] * shape.d_value) * full,
            exact=lengths.exact,
            causal=causal,
        )

    return formula


def _bytes(call: OperatorCall, where: Arguments, shape: Shape) -> int | None:
    """Return the bytes of Q, K, V and the output; backward also those of the gradients."""
    item = item_bytes(call.dtype(where.q))
    if item is None:
        return None
    width = shape.d + shape.d_value
    queries = shape.batch * shape.queries * shape.heads
    keys = shape.batch * shape.keys * shape.kv_heads
    gradients = queries * shape.d + keys * width if where.backward else 0
    return item * (queries * width + keys * width + gradients)


def _aten(causal: int, backward: bool = False) -> Arguments:
    return Arguments(q=int(backward), causal=causal, backward=backward)


def _flash(
    q: int, causal: int, window: int = -1, backward: bool = False, cumulative: int = -1, longest: int = -1
) -> Arguments:
    return Arguments(q, causal, False, cumulative, longest, window, True, backward)


_SDPA = "aten::_scaled_dot_product_"

_OPERATORS = {
    f"{_SDPA}flash_attention": _aten(4),
    f"{_SDPA}flash_attention_backward": _aten(11, backward=True),
    f"{_SDPA}flash_attention_for_cpu": _aten(4),
    f"{_SDPA}flash_attention_for_cpu_backward": _aten(7, backward=True),
    f"{_SDPA}efficient_attention": _aten(6),
    f"{_SDPA}efficient_attention_backward": _aten(11, backward=True),
    f"{_SDPA}cudnn_attention": _aten(6),
    f"{_SDPA}cudnn_attention_backward": _aten(14, backward=True),
    f"{_SDPA}fused_attention_overrideable": _aten(5),
    f"{_SDPA}fused_attention_overrideable_backward": _aten(13, backward=True),
    "aten::_flash_attention_forward": _flash(0, 8, 11, cumulative=3, longest=5),
    "aten::_flash_attention_backward": _flash(1, 11, 15, True, cumulative=6, longest=8),
    "aten::_efficient_attention_forward": Arguments(0, 9, False, 4, 6),
    "aten::_efficient_attention_backward": Arguments(1, 14, False, 6, 8, backward=True),
    "aten::_cudnn_attention_forward": Arguments(0, 10, True, 4, 6),
    "aten::_cudnn_attention_backward": Arguments(1, 14, True, 9, 11, backward=True),
    # Dao-AILab/flash-attention, flash_attn/flash_attn_interface.py and hopper/flash_attn_interface.py
    "flash_attn::_flash_attn_forward": _flash(0, 5, 6),
    "flash_attn::_flash_attn_backward": _flash(1, 11, 12, True),
    "flash_attn::_flash_attn_varlen_forward": _flash(0, 9, 10, cumulative=3, longest=5),
    "flash_attn::_flash_attn_varlen_backward": _flash(1, 15, 16, True, cumulative=9, longest=11),
    "flash_attn_3::fwd": _flash(0, 24, 25, cumulative=7, longest=12),
    "flash_attn_3::_flash_attn_forward": _flash(0, 24, 25, cumulative=7, longest=12),
    "flash_attn_3::bwd": _flash(1, 16, 17, True, cumulative=9, longest=13),
    "flash_attn_3::_flash_attn_backward": _flash(1, 13, 14, True, cumulative=6, longest=10),
    # ROCm/aiter, aiter/ops/mha.py
    "aiter::_flash_attn_forward": _flash(0, 5, 6),
    "aiter::_flash_attn_backward": _flash(1, 12, backward=True),
    "aiter::mha_fwd": _flash(0, 5, 6),
    "aiter::mha_bwd": _flash(1, 8, backward=True),
    "aiter::fmha_v3_fwd": _flash(0, 5, 6),
    "aiter::wrapper_fmha_v3_fwd": _flash(1, 6),
    "aiter::wrapper_fmha_v3_bwd": _flash(1, 9, backward=True),
}

FORMULAS: dict[str, Callable[[OperatorCall], Cost | None]] = {name: _formula(at) for name, at in _OPERATORS.items()}
"""The operators of fused attention, and the formula of each."""

OF_PARTS: dict[str, Callable[[OperatorCall], Cost | None]] = {
    "FlashAttnFunc": _formula(_flash(0, 5, 6)),
    "aten::scaled_dot_product_attention": _formula(_aten(5)),
}
"""Operators that call those above, or matrix products; their formula counts only where none is recorded below them."""
