"""The operators of a Chrome trace with their inputs and device time, read the plain way: an oracle for tests."""

from __future__ import annotations

import ast
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dptrace.model.operator_costs import OperatorCall, owns_kernels, owns_without_parts

_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCH = {"cuda_runtime", "cuda_driver"}


class PlainOperator:
    """One event of an operator, with what it encloses on its thread."""

    def __init__(self, event: dict[str, Any]) -> None:
        self.event, self.name, self.args = event, event["name"], event.get("args") or {}
        self.start = round(float(event["ts"]) * 1000)
        self.end = self.start + round(float(event.get("dur", 0)) * 1000)
        self.parts: list[PlainOperator] = []
        self.device: list[tuple[int, int]] = []

    def call(self) -> OperatorCall:
        """Return the call as the formulas take it."""
        keys = ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")
        return OperatorCall(self.name, *(_tuples(_value(self.args.get(key) or [])) for key in keys))

    def below(self) -> Iterator[PlainOperator]:
        """Yield it and all that it encloses."""
        yield self
        for part in self.parts:
            yield from part.below()

    def device_ns(self) -> int:
        """Return the time in which anything that was launched below it ran."""
        total, last = 0, -1
        for start, end in sorted(interval for operator in self.below() for interval in operator.device):
            total += max(0, end - max(start, last))
            last = max(last, end)
        return total


def _value(value: Any) -> Any:
    return ast.literal_eval(value) if isinstance(value, str) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def read_operators(path: Path) -> list[PlainOperator]:
    """Read the outermost operators of a trace, each with its parts."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events = [e for e in json.loads(raw.decode("utf-8", "replace"), strict=False)["traceEvents"] if e.get("ph") == "X"]
    device: dict[Any, list[tuple[int, int]]] = {}
    for event in events:
        if event.get("cat") in _DEVICE:
            interval = PlainOperator(event)
            device.setdefault(interval.args.get("correlation"), []).append((interval.start, interval.end))
    roots: list[PlainOperator] = []
    stacks: dict[Any, list[PlainOperator]] = {}
    calls = [PlainOperator(event) for event in events if event.get("cat") in {"cpu_op", *_LAUNCH}]
    for call in sorted(calls, key=lambda call: (call.start, -call.end, call.event["cat"] != "cpu_op")):
        stack = stacks.setdefault((call.event.get("pid"), call.event.get("tid")), [])
        while stack and (stack[-1].end <= call.start or call.end > stack[-1].end + 1000):
            stack.pop()
        if call.event["cat"] == "cpu_op":
            (stack[-1].parts if stack else roots).append(call)
            stack.append(call)
        elif stack:
            stack[-1].device += device.get(call.args.get("correlation"), [])
    return roots


def owners(operators: list[PlainOperator]) -> Iterator[PlainOperator]:
    """Yield the operators that own what is below them: the outermost with a formula, or those with no such parts."""
    for operator in operators:
        if owns_kernels(operator.name):
            yield operator
            continue
        inner = list(owners(operator.parts))
        if not inner and owns_without_parts(operator.name):
            yield operator
        yield from inner
