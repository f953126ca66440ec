"""FLOPs and bytes of any operator that has a formula, and which operators own the kernels below them."""

from __future__ import annotations

import math
from collections.abc import Callable

from dptrace.model import attention, flops
from dptrace.model.flops import ITEM_BYTES, Cost, OperatorCall, dtype_of, parse_integers, tensor_bytes

__all__ = ["POINTWISE_FORMULAS", "Cost", "OperatorCall", "cost", "owns_kernels", "owns_without_parts"]


# Bytes of operators whose time is that of their memory traffic: each input is read and each output written once.


_Formula = Callable[[OperatorCall], "Cost | None"]


def _cost(call: OperatorCall, size: int, kind: str) -> Cost:
    first = next(iter(call.tensors()), 0)
    return Cost(flops=None, bytes=size, dtype=dtype_of(call.dtype(first)), kind=kind)


def _inputs(call: OperatorCall) -> int:
    return sum(tensor_bytes(call, index) for index in call.tensors())


def _broadcast(call: OperatorCall) -> int:
    """Return the elements of the result of all inputs, broadcast."""
    shapes = [call.sizes(index) for index in call.tensors()]
    rank = max(len(sizes) for sizes in shapes)
    padded = [(1,) * (rank - len(sizes)) + sizes for sizes in shapes]
    return math.prod(0 if 0 in column else max(column) for column in zip(*padded, strict=True))


_CATEGORIES = (("bool",), ("unsigned char", "signed char", "short", "int", "long", "long int"))
"""Types below floating point, lowest first; those with a point come next, and complex ones last."""


def _promotion(dtype: str) -> tuple[int, int]:
    """Return what ranks a type where inputs of several types have a common result: its category, then its bytes."""
    known = next((place for place, types in enumerate(_CATEGORIES) if dtype in types), len(_CATEGORIES))
    return known + dtype.startswith("c10::complex"), ITEM_BYTES[dtype]


def _result_bytes(call: OperatorCall) -> int | None:
    """Return the bytes of an element of the result by torch's promotion of types; None where its version decides.

    An input without dimensions, as which a Python number is recorded, only counts where its category is higher, and a
    number then has the default type instead of its own, double.
    """
    tensors = call.tensors()
    sized = [call.dtype(index) for index in tensors if call.dims[index]]
    scalars = [call.dtype(index) for index in tensors if not call.dims[index]]
    if not sized:
        return max(map(_promotion, scalars))[1]
    most, scalar = max(map(_promotion, sized)), max(map(_promotion, scalars), default=(0, 0))
    if scalar[0] <= most[0]:
        return most[1]
    if most == (len(_CATEGORIES), 2):  # a complex number: bfloat16 becomes complex64, from torch 2.14 on bcomplex32
        return None if "c10::BFloat16" in sized else 4
    return scalar[1] // 2 if "double" in max(scalars, key=_promotion) else scalar[1]


def _has_list(call: OperatorCall) -> bool:
    return any(name in ("TensorList", "GenericList") for name in call.dtypes)


def _elementwise(kind: str = "elementwise", result: int | None = None, more: int = 0) -> _Formula:
    """Return the formula of an operator that writes one element for each of its broadcast inputs.

    Args:
        result: bytes of an element of the result; None where it has the inputs' common type.
        more: bytes that it writes in addition to each, such as those of a mask.
    """

    def formula(call: OperatorCall) -> Cost | None:
        tensors = call.tensors()
        if not tensors or _has_list(call):
            return None
        item = _result_bytes(call) if result is None else result
        return None if item is None else _cost(call, _inputs(call) + (item + more) * _broadcast(call), kind)

    return formula


def _in_place(call: OperatorCall) -> Cost | None:
    """Write the first input, which is also read."""
    if 0 not in call.tensors() or _has_list(call):
        return None
    return _cost(call, _inputs(call) + tensor_bytes(call, 0), "elementwise")


def _copy(call: OperatorCall) -> Cost | None:
    """(destination, source): the source, which may be broadcast, is read once."""
    return _cost(call, tensor_bytes(call, 0) + tensor_bytes(call, 1), "copy") if {0, 1} <= set(call.tensors()) else None


def _fill(call: OperatorCall) -> Cost | None:
    return _cost(call, tensor_bytes(call, 0), "elementwise") if 0 in call.tensors() else None


def _reduction(dims: int, extra: int = 0) -> _Formula:
    """Return the formula of a reduction.

    Args:
        dims: the argument with the reduced dimensions; all are where it is empty.
        extra: bytes in addition to each result, such as those of an index.
    """

    def formula(call: OperatorCall) -> Cost | None:
        if 0 not in call.tensors():
            return None
        sizes = call.sizes(0)
        reduced = {dim % len(sizes) for dim in parse_integers(call.text(dims))} if sizes else set()
        left = math.prod(size for dim, size in enumerate(sizes) if dim not in reduced) if reduced else 1
        return _cost(call, tensor_bytes(call, 0) + left * (ITEM_BYTES[call.dtype(0)] + extra), "reduction")

    return formula


def _normalization(weight: int | None = None, gradients: int | None = None) -> _Formula:
    """Return the formula of a normalization: all inputs, and a result like the first one.

    Args:
        weight: the weight, whose gradient and the bias' a backward writes too.
        gradients: the input that the result is like, if it is not the first.
    """

    def formula(call: OperatorCall) -> Cost | None:
        like = gradients or 0
        if like not in call.tensors():
            return None
        written = tensor_bytes(call, like)
        written += 2 * tensor_bytes(call, weight) if weight is not None and weight in call.tensors() else 0
        return _cost(call, _inputs(call) + written, "normalization")

    return formula


def _embedding(call: OperatorCall) -> Cost | None:
    """(weight [rows, d], indices): one row is read and written for each index."""
    width = math.prod(call.sizes(0)[1:]) * ITEM_BYTES[call.dtype(0)]
    return _cost(call, tensor_bytes(call, 1) + 2 * math.prod(call.sizes(1)) * width, "embedding")


def _embedding_backward(call: OperatorCall) -> Cost | None:
    """(grad [..., d], indices, rows): all rows of the gradient are written."""
    rows, width = int(call.text(2)), call.sizes(0)[-1]
    written = rows * width * ITEM_BYTES[call.dtype(0)]
    return _cost(call, tensor_bytes(call, 0) + tensor_bytes(call, 1) + written, "embedding")


def _index_select(call: OperatorCall) -> Cost | None:
    """(source, dim, index): the chosen slices are read and written."""
    sizes, dim = call.sizes(0), int(call.text(1))
    chosen = math.prod(call.sizes(2)) * (math.prod(sizes) // sizes[dim] if sizes[dim] else 0)
    return _cost(call, tensor_bytes(call, 2) + 2 * chosen * ITEM_BYTES[call.dtype(0)], "embedding")


def _gather(call: OperatorCall) -> Cost | None:
    """(source, dim, index): an element is read and written for each index."""
    elements = math.prod(call.sizes(2))
    return _cost(call, tensor_bytes(call, 2) + 2 * elements * ITEM_BYTES[call.dtype(0)], "embedding")


def _softmax_backward(call: OperatorCall) -> Cost | None:
    """(grad, output, dim, dtype)"""
    return _cost(call, _inputs(call) + tensor_bytes(call, 0), "softmax") if 0 in call.tensors() else None


_ARITHMETIC = """
abs add addcdiv addcmul atan2 bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min clone cos
cumsum div elu erf exp exp2 expm1 floor floor_divide fmod gelu gelu_backward glu_backward hardswish hardtanh
hardtanh_backward leaky_relu leaky_relu_backward lerp log log1p log2 log_sigmoid_forward masked_fill maximum minimum
mish mul nan_to_num native_dropout_backward neg pow reciprocal relu remainder round rsqrt rsub sgn sigmoid
sigmoid_backward sign silu silu_backward sin softplus softplus_backward sqrt square sub tanh tanh_backward threshold
threshold_backward tril triu trunc where xlogy
"""
_COMPARISONS = "eq ge gt isfinite isinf isnan le logical_and logical_not logical_or logical_xor lt ne"
_NORMALIZATIONS = """
_fused_rms_norm _native_batch_norm_legit batch_norm cudnn_batch_norm miopen_batch_norm native_batch_norm
native_group_norm native_layer_norm rms_norm
"""
_REDUCTIONS = "all amax amin any logsumexp mean prod std sum var"


def _each(names: str, formula: _Formula, suffix: str = "") -> dict[str, _Formula]:
    return {f"aten::{name}{suffix}": formula for name in names.split()}


POINTWISE_FORMULAS: dict[str, _Formula] = {
    **_each(_ARITHMETIC, _elementwise()),
    **_each(_ARITHMETIC, _in_place, "_"),
    **_each(_COMPARISONS, _elementwise(result=1)),
    **_each(_COMPARISONS, _in_place, "_"),
    **_each(_NORMALIZATIONS, _normalization()),
    **_each(_REDUCTIONS, _reduction(1)),
    **_each("argmax argmin max min", _reduction(1, extra=8)),
    "aten::norm": _reduction(2),
    "aten::linalg_vector_norm": _reduction(2),
    "aten::native_dropout": _elementwise(more=1),
    "aten::copy_": _copy,
    "aten::fill_": _fill,
    "aten::zero_": _fill,
    "aten::_softmax": _elementwise("softmax"),
    "aten::_log_softmax": _elementwise("softmax"),
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": _softmax_backward,
    # (grad, input, normalized_shape, mean, rstd, weight, bias, mask)
    "aten::native_layer_norm_backward": _normalization(5, 1),
    # (grad, input, mean, rstd, weight, ...)
    "aten::native_group_norm_backward": _normalization(4, 1),
    # (grad, input, weight, ...)
    "aten::native_batch_norm_backward": _normalization(2, 1),
    # (input, grad, weight, ...)
    "aten::cudnn_batch_norm_backward": _normalization(2),
    "aten::miopen_batch_norm_backward": _normalization(2),
    # (grad, input, normalized_shape, rstd, weight, mask)
    "aten::_fused_rms_norm_backward": _normalization(4, 1),
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::index_select": _index_select,
    "aten::gather": _gather,
}
"""The operators whose bytes are known from their inputs; their FLOPs do not matter for their time."""


_OWNERS = {**flops.MATMUL_FORMULAS, **flops.CONVOLUTION_FORMULAS, **attention.FORMULAS}
_OF_PARTS = {**flops.OF_PARTS, **attention.OF_PARTS}
_FORMULAS = {**POINTWISE_FORMULAS, **_OF_PARTS, **_OWNERS}


def cost(call: OperatorCall) -> Cost | None:
    """Return what a call computes and moves; None without a formula, or where its inputs are not recorded as needed.

    >>> mm = OperatorCall("aten::mm", ((64, 32), (32, 16)), ("float", "float"))
    >>> cost(mm).flops, cost(mm).bytes  # 2·64·16·32, and 4 bytes of each of 2048 + 512 + 1024 elements
    (65536, 14336)
    """
    formula = _FORMULAS.get(call.name)
    if formula is None or not call.dims:
        return None
    try:
        return formula(call)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None  # a list where a tensor is expected, too few sizes, a value that is no number: strangers' files


def owns_kernels(name: str) -> bool:
    """Return whether an operator has a FLOP formula: of nested ones, the outermost takes all kernels below it."""
    return name in _OWNERS


def owns_without_parts(name: str) -> bool:
    """Return whether an operator has a FLOP formula that counts only where no operator below it owns kernels.

    ``aten::linear`` calls ``aten::addmm`` nearly always, but not where its backend is not an operator.
    """
    return name in _OF_PARTS
