"""One call of an operator as a trace records it, and what such a call costs."""

from __future__ import annotations

import math
import operator
from typing import Any

import msgspec

__all__ = [
    "ITEM_BYTES",
    "Cost",
    "OperatorCall",
    "dtype_of",
    "item_bytes",
    "parse_bool",
    "parse_integers",
    "tensor_bytes",
]

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
