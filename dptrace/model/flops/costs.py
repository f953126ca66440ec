"""FLOPs and bytes of any operator that has a formula, and which operators own the kernels below them."""

from __future__ import annotations

from dptrace.model.flops import attention, convolution, matmul, pointwise
from dptrace.model.flops.calls import Cost, OperatorCall

__all__ = ["Cost", "OperatorCall", "cost", "owns_kernels", "owns_without_parts"]

_OWNERS = {**matmul.FORMULAS, **convolution.FORMULAS, **attention.FORMULAS}
_OF_PARTS = {**matmul.OF_PARTS, **attention.OF_PARTS}
_FORMULAS = {**pointwise.FORMULAS, **_OF_PARTS, **_OWNERS}


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
