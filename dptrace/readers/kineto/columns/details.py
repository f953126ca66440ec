"""Columns with the details of each event: shapes and types of an operator, grid and block of a kernel, a stack.

A page shows them for the event that a user chooses. Figures do not need them, so that only a page reads them.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.core.text import sanitize
from dptrace.readers.kineto.columns.events import Columns
from dptrace.readers.kineto.event_schema import DAMAGE, CompleteEvent, DetailArgs, as_count, detailed_events
from dptrace.readers.trace import EventDetails

__all__ = ["DetailedColumns"]

_NOTHING = DetailArgs()
_LONGEST_TEXT = 2_000
"""Characters of a detail that are kept; an operator on a list of thousands of tensors has more."""


class _Numbers(dict[Any, int]):
    """Numbers of distinct details, from 0, in order of appearance."""

    def __missing__(self, key: Any) -> int:
        return self.setdefault(key, len(self))


class DetailedColumns(Columns):
    """The columns of a file, with an index into a table of distinct details for each event."""

    def __init__(self) -> None:
        super().__init__()
        self._detail: list[NDArray[np.int32]] = []
        self._numbers = _Numbers()

    def _complete_events(self, text: bytes) -> tuple[int, int, list[CompleteEvent]]:
        return detailed_events(text, self._exact)

    def _reduce(self, kept: list[CompleteEvent], start: Int64, category: NDArray[np.uint8]) -> None:
        super()._reduce(kept, start, category)
        numbers = self._numbers
        args: list[Any] = [event.args or _NOTHING for event in kept]
        keys = (
            (bytes(a.dims), bytes(a.types), bytes(a.grid), bytes(a.block), bytes(a.stack), as_count(a.bytes))
            for a in args
        )
        self._detail.append(np.fromiter((numbers[key] for key in keys), np.int32, len(kept)))

    def more(self, order: Int64) -> dict[str, Any]:
        """Return the details of the events in *order*, as indices and a table, and the file's ids of threads."""
        return {
            "detail": np.concatenate(self._detail)[order],
            "details": tuple(_details(*key) for key in self._numbers),
            "threads": self.thread_names(),
        }


def _details(dims: bytes, types: bytes, grid: bytes, block: bytes, stack: bytes, size: int | None) -> EventDetails:
    shapes, dtypes = _list(dims), _list(types)
    # Kineto lists an empty entry for each input that is no tensor.
    tensors = [(shape, dtypes[i] if i < len(dtypes) else "") for i, shape in enumerate(shapes) if shape]
    frames = _value(stack)
    return EventDetails(
        _text(" × ".join(_shape(shape) for shape, _ in tensors)),
        _text(", ".join(str(dtype) for _, dtype in tensors if dtype)),
        _text(_shape(_list(grid)) if grid else ""),
        _text(_shape(_list(block)) if block else ""),
        -1 if size is None else size,
        _text(frames.replace(";", "\n")) if type(frames) is str else "",
    )


def _shape(sizes: object) -> str:
    """Write sizes as torch does; a list of tensors has a list of sizes for each."""
    if isinstance(sizes, list):
        return f"[{', '.join(map(_shape, sizes))}]"
    return str(sizes)


def _list(text: bytes) -> list[Any]:
    value = _value(text)
    return value if isinstance(value, list) else []


def _value(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except DAMAGE:
        return None


def _text(text: str) -> str:
    """Cut a text, and make it safe to show; lines stay lines."""
    short = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + " …"
    return "\n".join(map(sanitize, short.split("\n")))
