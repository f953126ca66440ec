"""FLOPs of operators: how their calls are read, and the formulas of matrix products and convolutions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import msgspec

# One call of an operator as a trace records it, and what such a call costs.


ITEM_BYTES = {
    "double": 8,
    "float": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2fnuz": 1,
    "c10::Float8_e8m0fnu": 1,
    "c10::Float4_e2m1fn_x2": 1,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "long": 8,
    "long int": 8,
    "int": 4,
    "short": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
}
"""Bytes of an element, by the type's name in ``Input type``."""

_SHORT_NAMES = {
    "double": "fp64",
    "float": "fp32",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "signed char": "int8",
    "unsigned char": "int8",
    "long": "int64",
    "long int": "int64",
    "int": "int32",
    "short": "int16",
    "c10::Float4_e2m1fn_x2": "fp4",
}


class OperatorCall(msgspec.Struct, frozen=True):
    """The inputs of one call, in the order of the operator's arguments; all are empty where nothing was recorded."""

    name: str
    dims: tuple[Any, ...] = ()
    """Per input its sizes; of a list of tensors a tuple of sizes; () for a number, a scalar tensor or nothing."""
    dtypes: tuple[str, ...] = ()
    """Per input the type's name (``float``, ``c10::BFloat16``, ``Scalar``, ``TensorList``); "" for no input."""
    concrete: tuple[str, ...] = ()
    """Per input its value as text, where it is no tensor; else ""."""
    strides: tuple[Any, ...] = ()

    @classmethod
    def recorded(cls, name: str, dims: str, dtypes: str, concrete: str, strides: str = "") -> OperatorCall:
        """Read a call from the JSON lists that a trace has of it; what is not valid counts as not recorded."""
        return cls(
            name,
            _tuples(decoded_list(dims)),
            tuple(map(str, decoded_list(dtypes))),
            tuple(text if isinstance(text, str) else "" for text in decoded_list(concrete)),
            _tuples(decoded_list(strides)),
        )

    def sizes(self, index: int) -> tuple[int, ...]:
        """Return the sizes of the tensor at *index*.

        Raises:
            IndexError: there is no such input.
            TypeError: it is a list of tensors.
            ValueError: a size is negative.
        """
        sizes = tuple(operator.index(size) for size in self.dims[index])
        if any(size < 0 for size in sizes):
            raise ValueError(f"negative sizes: {sizes}")
        return sizes

    def has_tensor(self, index: int) -> bool:
        """Return whether the input at *index* is a tensor with at least one dimension."""
        return index < len(self.dims) and bool(self.dims[index])

    def dtype(self, index: int) -> str:
        """Return the type's name of the input at *index*; "" where it is not recorded."""
        return self.dtypes[index] if index < len(self.dtypes) else ""

    def text(self, index: int) -> str:
        """Return the value at *index* as text; "" where it is not recorded."""
        return self.concrete[index] if index < len(self.concrete) else ""

    def tensors(self) -> list[int]:
        """List the inputs that are single tensors of a known type."""
        return [index for index in range(len(self.dims)) if self.dtype(index) in ITEM_BYTES]


def decoded_list(text: str) -> list[Any]:
    """Return the list that a JSON text is; empty for any other text."""
    try:
        value = msgspec.json.decode(text) if text else []
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def _tuples(value: list[Any]) -> tuple[Any, ...]:
    return tuple(_tuples(item) if isinstance(item, list) else item for item in value)


class Cost(msgspec.Struct, frozen=True):
    """What one call computes and moves."""

    flops: int | None
    """Floating-point operations that the call carries out: with the bias, without what a causal mask or a window leaves
    out. None for operators whose time is that of their bytes."""
    bytes: int | None
    """Bytes of the inputs and outputs, each once; None where a type is not known."""
    dtype: str
    """Type of the (first) factor: ``fp64``, ``fp32``, ``fp16``, ``bf16``, ``fp8``, ``int8`` …"""
    kind: str
    """``matmul``, ``attention``, ``convolution``, ``normalization``, ``softmax``, ``elementwise``, ``reduction``,
    ``embedding``, ``copy``."""
    counted_flops: int | None = None
    """The same as ``torch.utils.flop_counter`` counts: products only, no bias, masked products in full."""
    model_flops: int | None = None
    """Like ``counted_flops``, without the product that a backward of fused attention repeats: what MFU counts."""
    exact: bool = True
    """False where the file does not record all lengths, so that FLOPs are a lower bound."""
    causal: bool = False
    batch: int = 0
    """Of a matrix product: how many products, each of [m, k] × [k, n]."""
    m: int = 0
    n: int = 0
    k: int = 0


def item_bytes(dtype: str) -> int | None:
    """Return the bytes of one element; None for an unknown type."""
    return ITEM_BYTES.get(dtype)


def dtype_of(name: str) -> str:
    """Return the short name of a type: ``bf16`` for ``c10::BFloat16``."""
    return "fp8" if name.startswith("c10::Float8") else _SHORT_NAMES.get(name, name.removeprefix("c10::"))


def tensor_bytes(call: OperatorCall, index: int) -> int:
    """Return the bytes of the tensor at *index*; a scalar tensor has one element.

    Raises:
        KeyError: its type is not known.
    """
    return math.prod(call.sizes(index)) * ITEM_BYTES[call.dtype(index)]


def parse_bool(text: str) -> bool:
    """Return whether a recorded value is true."""
    return text.strip().lower() in ("true", "1")


def parse_integers(text: str) -> tuple[int, ...]:
    """Read a recorded number or list of numbers: ``[1, 2]`` or ``3``; empty for no text.

    Raises:
        ValueError: it is neither.
    """
    inner = text.strip().strip("[]()")
    return tuple(int(part) for part in inner.split(",") if part.strip())


# FLOPs and bytes of matrix products: 2·m·n·k each, and m·n for a bias that is added.


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

MATMUL_FORMULAS: dict[str, Callable[[OperatorCall], Cost | None]] = {
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


# FLOPs and bytes of convolutions, forward and backward, transposed and grouped.
#
# Each element of the output takes one multiplication and one addition for each weight that reaches it: of a filter
# [out, in/groups, ...] that is 2·in/groups·kernel. A transposed convolution is the other way round: its inputs take
# them.


_Sizes = tuple[int, ...]


def _spread(text: str, count: int, default: int) -> _Sizes:
    """Read one number for each spatial dimension; a single one holds for all."""
    values = parse_integers(text) or (default,)
    return values * count if len(values) == 1 else values


def _output(x: _Sizes, weight: _Sizes, stride: _Sizes, padding: _Sizes, dilation: _Sizes) -> _Sizes:
    """Return the sizes of a convolution's output: [batch, out channels, ...]."""
    spatial = tuple(
        (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
        for size, kernel, step, pad, gap in zip(x[2:], weight[2:], stride, padding, dilation, strict=True)
    )
    return (x[0], weight[0], *spatial)


def _transposed_output(
    x: _Sizes, weight: _Sizes, stride: _Sizes, padding: _Sizes, dilation: _Sizes, extra: _Sizes, groups: int
) -> _Sizes:
    """Return the sizes of a transposed convolution's output, from a weight [in channels, out/groups, ...]."""
    spatial = tuple(
        (size - 1) * step - 2 * pad + gap * (kernel - 1) + more + 1
        for size, kernel, step, pad, gap, more in zip(x[2:], weight[2:], stride, padding, dilation, extra, strict=True)
    )
    return (x[0], weight[1] * groups, *spatial)


def _forward_cost(call: OperatorCall, weight: _Sizes, out: _Sizes, positions: _Sizes, biased: bool) -> Cost:
    """Return the cost of a convolution whose *positions* each meet the whole filter."""
    products = 2 * math.prod(weight[1:]) * math.prod(positions)
    item = item_bytes(call.dtype(0))
    elements = math.prod(call.sizes(0)) + math.prod(weight) + math.prod(out) + (out[1] if biased else 0)
    return Cost(
        flops=products + (math.prod(out) if biased else 0),
        bytes=None if item is None else item * elements,
        dtype=dtype_of(call.dtype(0)),
        kind="convolution",
        counted_flops=products,
        model_flops=products,
    )


def _convolution(call: OperatorCall) -> Cost | None:
    """(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, ...)"""
    x, weight = call.sizes(0), call.sizes(1)
    count = len(x) - 2
    if count < 1 or len(weight) != len(x):
        return None
    stride, padding, dilation = (_spread(call.text(3 + i), count, default) for i, default in enumerate((1, 0, 1)))
    if parse_bool(call.text(6)):
        extra = _spread(call.text(7), count, 0)
        out = _transposed_output(x, weight, stride, padding, dilation, extra, int(call.text(8) or 1))
        return _forward_cost(call, weight, out, x, call.has_tensor(2))
    out = _output(x, weight, stride, padding, dilation)
    return _forward_cost(call, weight, out, out, call.has_tensor(2))


def _library(first: int, bias: int | None) -> Callable[[OperatorCall], Cost | None]:
    """Return the formula of a library's own convolution: padding, stride and dilation from the argument *first*."""

    def formula(call: OperatorCall) -> Cost | None:
        x, weight = call.sizes(0), call.sizes(1)
        count = len(x) - 2
        if count < 1 or len(weight) != len(x):
            return None
        padding, stride, dilation = (
            _spread(call.text(first + i), count, default) for i, default in enumerate((0, 1, 1))
        )
        out = _output(x, weight, stride, padding, dilation)
        return _forward_cost(call, weight, out, out, bias is not None and call.has_tensor(bias))

    return formula


def _mask(text: str) -> tuple[bool, ...]:
    """Read which gradients are computed: of the input, the weight and the bias; all where it is not recorded."""
    return tuple(parse_bool(part) for part in text.strip("[]").split(",")) if text else (True, True, True)


def _gradients(call: OperatorCall, grad: int, x: int, weight: int, transposed: bool, mask: tuple[bool, ...]) -> Cost:
    """Return the cost of the gradients that *mask* asks for: as much as the forward for each of input and weight."""
    grad_sizes, x_sizes, weight_sizes = call.sizes(grad), call.sizes(x), call.sizes(weight)
    products = 2 * math.prod(weight_sizes[1:]) * math.prod(x_sizes if transposed else grad_sizes) * sum(mask[:2])
    item = item_bytes(call.dtype(grad))
    elements = (math.prod(grad_sizes) + math.prod(weight_sizes) + math.prod(x_sizes)) * sum(mask[:2])
    return Cost(
        flops=products + (math.prod(grad_sizes) if len(mask) > 2 and mask[2] else 0),
        bytes=None if item is None else item * elements,
        dtype=dtype_of(call.dtype(grad)),
        kind="convolution",
        counted_flops=products,
        model_flops=products,
    )


def _backward(call: OperatorCall) -> Cost | None:
    """(grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask)"""
    return _gradients(call, 0, 1, 2, parse_bool(call.text(7)), _mask(call.text(10)))


def _old_backward(mask: int) -> Callable[[OperatorCall], Cost | None]:
    """Return the formula of a library's backward, before torch 1.11: (input, grad, weight, ...)."""
    return lambda call: _gradients(call, 1, 0, 2, False, _mask(call.text(mask)))


CONVOLUTION_FORMULAS: dict[str, Callable[[OperatorCall], Cost | None]] = {
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_overrideable": _convolution,
    "aten::convolution_backward": _backward,
    "aten::cudnn_convolution": _library(2, None),
    "aten::miopen_convolution": _library(3, 2),
    "aten::mkldnn_convolution": _library(3, 2),
    "mkldnn::_convolution_pointwise": _library(3, 2),
    "aten::cudnn_convolution_backward": _old_backward(10),
    "aten::miopen_convolution_backward": _old_backward(9),
}
"""The operators that convolve, and the formula of each."""
