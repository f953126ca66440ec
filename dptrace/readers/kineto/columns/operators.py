"""Columns with the inputs of operators, and the numbers that tie backward to forward; figures do not need them."""

from __future__ import annotations

from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.readers.kineto.columns.events import Columns, integers, long_or_not_python
from dptrace.readers.kineto.event_schema import CompleteEvent, InputArgs, operator_events
from dptrace.readers.trace import Category, OperatorArgs, OperatorInputs

__all__ = ["OperatorColumns", "long_or_module"]

_NOTHING = InputArgs()
_LONGEST_TEXT = 20_000
"""Bytes of an input that are kept; an optimizer's operator on lists of thousands of tensors has more."""
_NO_DIMS, _NO_CONCRETE, _NO_KEY = _NOTHING.dims, _NOTHING.concrete, (b"", b"", b"", b"")
_MODULE = "nn.Module: "


class OperatorColumns(Columns):
    """The columns of a file, with the inputs and sequence number of each operator, and modules however short."""

    def __init__(self) -> None:
        super().__init__()
        self._more: list[tuple[NDArray[np.int32], Int64, NDArray[np.int32]]] = []
        self._numbers: dict[tuple[bytes, bytes, bytes, bytes], int] = {}

    def _complete_events(self, text: bytes) -> tuple[int, int, list[CompleteEvent]]:
        return operator_events(text, self._exact)

    def _wanted(self, events: list[CompleteEvent], category: NDArray[np.uint8]) -> NDArray[np.bool_]:
        return long_or_module(events, category)

    def _reduce(self, kept: list[CompleteEvent], start: Int64, category: NDArray[np.uint8]) -> None:
        super()._reduce(kept, start, category)
        operators = category == Category.CPU_OP
        args: list[Any] = [event.args or _NOTHING for event in compress(kept, operators.tolist())]
        inputs, sequence = np.full(len(kept), -1, np.int32), np.full(len(kept), -1, np.int64)
        thread = np.zeros(len(kept), np.int32)
        numbers = self._numbers
        # Most operators of a recording without shapes share the default; comparing it is much faster than copying.
        keys = [
            _NO_KEY
            if a.dims is _NO_DIMS and a.concrete is _NO_CONCRETE
            else (bytes(a.dims), bytes(a.types), bytes(a.concrete), bytes(a.strides))
            for a in args
        ]
        inputs[operators] = [numbers.setdefault(key, len(numbers)) for key in keys]
        sequence[operators] = np.maximum(integers([a.sequence for a in args]), -1)
        thread[operators] = np.clip(integers([a.forward_thread for a in args]), 0, np.iinfo(np.int32).max)
        self._more.append((inputs, sequence, thread))

    def more(self, order: Int64) -> dict[str, Any]:
        """Return the inputs and numbers of the events in *order*, and the file's ids of threads."""
        inputs, sequence, thread = (np.concatenate(parts)[order] for parts in zip(*self._more, strict=True))
        table = tuple(OperatorInputs(*map(_text, key)) for key in self._numbers)
        return {
            "operators": OperatorArgs(inputs, table, sequence, thread),
            "threads": self.thread_names(),
        }


def long_or_module(events: list[CompleteEvent], category: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which events are not Python functions, or long ones, or the forward of an ``nn.Module``."""
    wanted = long_or_not_python(events, category)
    for i in np.flatnonzero(~wanted).tolist():
        wanted[i] = str(events[i].name).startswith(_MODULE)
    return wanted


def _text(raw: bytes) -> str:
    """Return a short JSON list as text; a long one is left out, since it can't be decoded in part."""
    return raw.decode("utf-8", "replace") if len(raw) <= _LONGEST_TEXT else ""
