"""FLOPs and bytes of matrix products: 2·m·n·k each, and m·n for a bias that is added."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from dptrace.model.flops.calls import ITEM_BYTES, Cost, OperatorCall, dtype_of, item_bytes

__all__ = ["FORMULAS", "OF_PARTS"]


def _product(
    call: OperatorCall, batch: int, m: int, n: int, k: int, *, a: int, bias: int = 0, out: int | None = None
) -> Cost:
    """Return the cost of *batch* products [m, k] × [k, n].

    Args:
        a: the input that is the first factor; its type counts for all, except the output of 1-byte types.
        bias: elements of the bias that one product adds; 0 without.
        out: the input that is the output, if there is one.
    """
    products = 2 * batch * m * n * k
    item = item_bytes(call.dtype(a))
    return Cost(
        flops=products + (batch * m * n if bias else 0),
        bytes=None if item is None else batch * (item * (m * k + k * n + bias) + _out_item(call, item, out) * m * n),
        dtype=dtype_of(call.dtype(a)),
        kind="matmul",
        counted_flops=products,
        model_flops=products,
        batch=batch,
        m=m,
        n=n,
        k=k,
    )


def _out_item(call: OperatorCall, item: int, out: int | None) -> int:
    """Return the bytes of one element of the output: of the recorded one, else 2 for factors of 1 byte."""
    recorded = item_bytes(call.dtype(out)) if out is not None and call.has_tensor(out) else None
    return recorded or (2 if item == 1 else item)


def _matrices(a: int, bias: int | None = None, outputs: tuple[int, ...] = ()) -> Callable[[OperatorCall], Cost | None]:
    """Return the formula of [m, k] × [k, n], or of a batch of them.

    Args:
        a: position of the first factor; the second follows it.
        bias: position of the bias, if there may be one.
        outputs: positions at which ``out=`` variants record their output.
    """

    def formula(call: OperatorCall) -> Cost | None:
        left, right = call.sizes(a), call.sizes(a + 1)
        if len(left) != len(right) or len(left) not in (2, 3) or left[-1] != right[-2]:
            return None
        m, k, n = left[-2], left[-1], right[-1]
        has_bias = bias is not None and (call.has_tensor(bias) or bias == 0)
        out = next((index for index in outputs if call.has_tensor(index)), None)
        return _product(call, math.prod(left[:-2]), m, n, k, a=a, bias=n if has_bias else 0, out=out)

    return formula


def _matrix_vector(a: int, biased: bool) -> Callable[[OperatorCall], Cost | None]:
    def formula(call: OperatorCall) -> Cost | None:
        (m, k), (length,) = call.sizes(a), call.sizes(a + 1)
        return _product(call, 1, m, 1, k, a=a, bias=int(biased)) if k == length else None

    return formula


def _dot(call: OperatorCall) -> Cost | None:
    (k,), (other,) = call.sizes(0), call.sizes(1)
    return _product(call, 1, 1, 1, k, a=0) if k == other else None


def _addbmm(call: OperatorCall) -> Cost | None:
    """Sum of a batch of products: one output."""
    (batch, m, k), (_, other, n) = call.sizes(1), call.sizes(2)
    return _product(call, 1, m, n, batch * k, a=1, bias=n) if k == other else None


def _grouped(bias: int, outputs: tuple[int, ...] = ()) -> Callable[[OperatorCall], Cost | None]:
    """Products whose rows, columns or inner dimension are divided among groups, by ``offs``.

    A 2-dimensional factor holds all groups' parts behind each other. Where it is divided along the inner dimension,
    [m, k] × [k, n] gives a product for each group; all of them together cover k.
    """

    def formula(call: OperatorCall) -> Cost | None:
        left, right = call.sizes(0), call.sizes(1)
        out = next((index for index in outputs if call.has_tensor(index)), None)
        batch = left[0] if len(left) == len(right) == 3 else 1
        if left[-1] != right[-2] or not 2 <= len(left) <= 3 or not 2 <= len(right) <= 3:
            return None
        m, k, n = left[-2], left[-1], right[-1]
        has_bias = call.has_tensor(bias)
        cost = _product(call, batch, m, n, k, a=0, bias=n if has_bias else 0, out=out)
        extra = (math.prod(right) - k * n if len(right) == 3 else 0) + (
            math.prod(left) - m * k if len(left) == 3 else 0
        )
        if batch > 1 or cost.bytes is None or not extra:
            return cost
        return msgspec.structs.replace(cost, bytes=cost.bytes + extra * ITEM_BYTES[call.dtype(0)])

    return formula


def _linear(call: OperatorCall) -> Cost | None:
    """x [..., k] × weight [n, k], as nn.Linear stores it."""
    x, weight = call.sizes(0), call.sizes(1)
    if len(weight) not in (1, 2) or not x or x[-1] != weight[-1]:
        return None
    n = weight[0] if len(weight) == 2 else 1
    return _product(call, 1, math.prod(x[:-1]), n, weight[-1], a=0, bias=n if call.has_tensor(2) else 0)


def _matmul(call: OperatorCall) -> Cost | None:
    """numpy's rule: vectors are rows or columns, leading dimensions broadcast."""
    left, right = call.sizes(0), call.sizes(1)
    if not left or not right:
        return None
    left = left if len(left) > 1 else (1, *left)
    right = right if len(right) > 1 else (*right, 1)
    if left[-1] != right[-2]:
        return None
    rank = max(len(left), len(right)) - 2
    lead = [(1,) * (rank + 2 - len(sizes)) + sizes[:-2] for sizes in (left, right)]
    batch = math.prod(max(pair) for pair in zip(*lead, strict=True))
    if len(right) == 2:
        return _product(call, 1, batch * left[-2], right[-1], left[-1], a=0)
    return _product(call, batch, left[-2], right[-1], left[-1], a=0)


def _einsum(call: OperatorCall) -> Cost | None:
    """Two operands: a multiplication and an addition for each combination of all indices."""
    equation, operands = call.text(0).strip("'\"").replace(" ", ""), call.dims[1]
    inputs = equation.partition("->")[0].split(",")
    if len(inputs) != 2 or len(operands) != 2 or "." in equation:
        return None
    sizes: dict[str, int] = {}
    for letters, shape in zip(inputs, operands, strict=True):
        if len(letters) != len(shape):
            return None
        for letter, size in zip(letters, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    products = 2 * math.prod(sizes.values())
    return Cost(products, None, "", "matmul", counted_flops=products, model_flops=products)


_MM, _ADDMM = _matrices(0, outputs=(2,)), _matrices(1, bias=0)

FORMULAS: dict[str, Callable[[OperatorCall], Cost | None]] = {
    "aten::mm": _MM,
    "aten::bmm": _MM,
    "aten::_int_mm": _matrices(0, outputs=(2,)),
    "aten::addmm": _ADDMM,
    "aten::addmm_": _ADDMM,
    "aten::_addmm_activation": _ADDMM,
    "aten::baddbmm": _ADDMM,
    "aten::baddbmm_": _ADDMM,
    "aten::addbmm": _addbmm,
    "aten::addbmm_": _addbmm,
    # (A, B, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum, out)
    "aten::_scaled_mm": _matrices(0, bias=4, outputs=(8,)),
    # (A, B, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype, contraction_dim, ...)
    "aten::_scaled_mm_v2": _matrices(0, bias=8),
    # (A, B, offs, bias, out_dtype)
    "aten::_grouped_mm": _grouped(3),
    # (A, B, scale_a, scale_b, offs, bias, scale_result, out_dtype, use_fast_accum)
    "aten::_scaled_grouped_mm": _grouped(5),
    "aten::mv": _matrix_vector(0, False),
    "aten::addmv": _matrix_vector(1, True),
    "aten::addmv_": _matrix_vector(1, True),
    "aten::dot": _dot,
    "aten::vdot": _dot,
    "trtllm::cublas_scaled_mm": _matrices(0, bias=4),
    "aiter::gemm_a16w16": _linear,
    "aten::mkldnn_linear": _linear,
    "aten::mkldnn_linear_pointwise": _linear,
    "mkldnn::_linear_pointwise": _linear,
    "mkl::_mkl_linear": _linear,
}
"""The operators that multiply matrices, and the formula of each."""

OF_PARTS: dict[str, Callable[[OperatorCall], Cost | None]] = {
    "aten::linear": _linear,
    "aten::matmul": _matmul,
    "aten::einsum": _einsum,
}
"""Operators that call those above; their formula counts only where none of those is recorded below them."""
