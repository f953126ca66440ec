"""FLOPs and bytes of convolutions, forward and backward, transposed and grouped.

Each element of the output takes one multiplication and one addition for each weight that reaches it: of a filter
[out, in/groups, ...] that is 2·in/groups·kernel. A transposed convolution is the other way round: its inputs take them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dptrace.model.flops.calls import Cost, OperatorCall, dtype_of, item_bytes, parse_bool, parse_integers

__all__ = ["FORMULAS"]

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


FORMULAS: dict[str, Callable[[OperatorCall], Cost | None]] = {
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
