"""Shapes of operators as columns of a table, with what one call of each computes and moves."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import numpy as np

from dptrace.analysis.kernels.grouping import Groups
from dptrace.model.flops import Cost, OperatorCall
from dptrace.model.operator_costs import cost
from dptrace.readers.trace import OperatorInputs

__all__ = ["Shape", "merge_shapes", "operator_call", "shape_columns"]


class Shape(msgspec.Struct, frozen=True):
    """What calls of one operator have in common in a row: sizes, types and cost of a call."""

    dims: str
    dtypes: str
    cost: Cost | None


def merge_shapes(groups: Groups, by: str) -> Groups:
    """Merge groups of one operator whose inputs differ only in what changes neither sizes nor types nor cost."""
    if by != "operator-shape":
        return groups
    numbers: dict[tuple[Any, ...], int] = {}
    merged = [(name, _shape(name, inputs)) for name, inputs in groups.keys]
    code = np.array([numbers.setdefault(key, len(numbers)) for key in merged], np.int64)
    return Groups(list(numbers), code[groups.code] if len(code) else groups.code, groups.instance)


@cache
def _shape(name: str, inputs: OperatorInputs) -> Shape:
    call = operator_call(name, inputs)
    return Shape(inputs.dims, inputs.dtypes, cost(call) if call.dims else None)


def operator_call(name: str, inputs: OperatorInputs) -> OperatorCall:
    """Return a call as the formulas take it; what is not valid counts as not recorded."""
    return OperatorCall(
        name,
        _tuples(_decoded(inputs.dims)),
        tuple(map(str, _decoded(inputs.dtypes))),
        tuple(text if isinstance(text, str) else "" for text in _decoded(inputs.concrete)),
        _tuples(_decoded(inputs.strides)),
    )


def _decoded(text: str) -> list[Any]:
    try:
        value = msgspec.json.decode(text) if text else []
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def _tuples(value: list[Any]) -> tuple[Any, ...]:
    return tuple(_tuples(item) if isinstance(item, list) else item for item in value)


def shape_columns(row: dict[str, Any]) -> dict[str, Any]:
    """Replace the shape of a row by its columns: sizes, types, FLOPs and bytes of a call, and the mean rates."""
    shape, ns = row["input_dims"], row["kernel_ns"]
    known = shape.cost
    flops, size = (known.flops, known.bytes) if known else (None, None)
    dtypes = [str(dtype) for dtype in _decoded(shape.dtypes)]
    columns = {
        "operator": row["operator"],
        "input_dims": _decoded(shape.dims),
        "dtype": known.dtype if known else next((dtype for dtype in dtypes if dtype), ""),
        "input_types": dtypes,
        "flops": flops,
        "bytes": size,
        "tflops": None if flops is None or not ns else round(flops * row["count"] / ns / 1e3, 6),
        "gbps": None if size is None or not ns else round(size * row["count"] / ns, 6),
        "formula": known.kind if known else None,
        "counted_flops": known.counted_flops if known else None,
        "model_flops": known.model_flops if known else None,
        "flops_exact": known.exact if known and flops is not None else None,
    }
    rank = {"rank": row["rank"]} if "rank" in row else {}
    return rank | columns | {name: value for name, value in row.items() if name not in columns and name != "rank"}
