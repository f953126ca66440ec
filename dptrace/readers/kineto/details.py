"""Columns that only some commands read: details of events, inputs of operators, memory."""

from __future__ import annotations

from array import array
from itertools import compress
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.core.units import sanitize
from dptrace.readers.kineto.columns import MAX_INPUT_BYTES, Columns, integers, long_or_not_python, nanoseconds
from dptrace.readers.kineto.event_schema import (
    DAMAGE,
    CompleteEvent,
    DetailArgs,
    InputArgs,
    Instant,
    MemoryArgs,
    as_count,
)
from dptrace.readers.source import Source
from dptrace.readers.stream import ChunkedStream, open_decompressed
from dptrace.readers.trace import (
    NO_MEMORY_EVENTS,
    TOTAL_UNKNOWN,
    Category,
    EventDetails,
    MemoryEvents,
    OperatorArgs,
    OperatorInputs,
)

# Columns with the details of each event: shapes and types of an operator, grid and block of a kernel, a stack.
#
# A page shows them for the event that a user chooses. Figures do not need them, so that only a page reads them.

_NOTHING = DetailArgs()
_MAX_TEXT = 2_000
"""Characters of a detail that are kept; an operator on a list of thousands of tensors has more."""


class DetailedColumns(Columns):
    """The columns of a file, with an index into a table of distinct details for each event."""

    args_type = DetailArgs

    def __init__(self) -> None:
        super().__init__()
        self._detail: list[NDArray[np.int32]] = []
        self._numbers: dict[Any, int] = {}

    def _reduce(self, kept: list[CompleteEvent], start: Int64, length: Int64, category: NDArray[np.uint8]) -> None:
        super()._reduce(kept, start, length, category)
        numbers = self._numbers
        args: list[Any] = [event.args or _NOTHING for event in kept]
        keys = (
            (bytes(a.dims), bytes(a.types), bytes(a.grid), bytes(a.block), bytes(a.stack), as_count(a.bytes))
            for a in args
        )
        self._detail.append(np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int32))

    def more(self, order: Int64) -> dict[str, Any]:
        """Return the details of the events in *order*, as indices and a table, and the file's ids of threads."""
        return {
            "detail": np.concatenate(self._detail)[order],
            "details": tuple(event_details(*key) for key in self._numbers),
            "threads": self.thread_names(),
        }


def event_details(dims: bytes, types: bytes, grid: bytes, block: bytes, stack: bytes, size: int | None) -> EventDetails:
    """Return the details that an event's arguments hold, each as JSON, and the bytes of a copy."""
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
    short = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " …"
    return "\n".join(map(sanitize, short.split("\n")))


# Columns with the inputs of operators, and the numbers that tie backward to forward; figures do not need them.

_NO_INPUTS = InputArgs()
_NO_DIMS, _NO_CONCRETE, _NO_KEY = _NO_INPUTS.dims, _NO_INPUTS.concrete, (b"", b"", b"", b"")
_MODULE = "nn.Module: "


def long_or_module(events: list[CompleteEvent], category: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which events are not Python functions, or long ones, or the forward of an ``nn.Module``."""
    wanted = long_or_not_python(events, category)
    for i in np.flatnonzero(~wanted).tolist():
        wanted[i] = str(events[i].name).startswith(_MODULE)
    return wanted


class OperatorColumns(Columns):
    """The columns of a file, with the inputs and sequence number of each operator, and modules however short."""

    args_type = InputArgs
    wanted = staticmethod(long_or_module)

    def __init__(self) -> None:
        super().__init__()
        self._more: list[tuple[NDArray[np.int32], Int64, NDArray[np.int32]]] = []
        self._numbers: dict[tuple[bytes, bytes, bytes, bytes], int] = {}

    def _reduce(self, kept: list[CompleteEvent], start: Int64, length: Int64, category: NDArray[np.uint8]) -> None:
        super()._reduce(kept, start, length, category)
        operators = category == Category.CPU_OP
        args: list[Any] = [event.args or _NO_INPUTS for event in compress(kept, operators.tolist())]
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
        table = tuple(OperatorInputs(*map(_inputs_text, key)) for key in self._numbers)
        return {"operators": OperatorArgs(inputs, table, sequence, thread), "threads": self.thread_names()}


def _inputs_text(raw: bytes) -> str:
    """Return a short JSON list as text; a long one is left out, since it can't be decoded in part."""
    return raw.decode("utf-8", "replace") if len(raw) <= MAX_INPUT_BYTES else ""


# Columns with the memory events of a file, which ``profile_memory=True`` adds: ``[memory]`` and ``[OutOfMemory]``.
#
# Figures of time do not need them, so that only what shows memory reads them.

_ALLOCATION, _FAILED = "[memory]", "[OutOfMemory]"
_MARK = _ALLOCATION.encode()
_DAY = 86_400 * 10**9
"""Longer than any recording."""
_DECODER: msgspec.json.Decoder[MemoryArgs] = msgspec.json.Decoder(MemoryArgs)
_FIELDS = ("bytes", "address", "allocated", "reserved", "device_type", "device")


class MemoryColumns(Columns):
    """The columns of a file with modules however short, and those of its memory events."""

    with_instants = True
    wanted = staticmethod(long_or_module)

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[tuple[NDArray[Any], ...]] = []
        """Per chunk: time, thread, whether it failed, then one column for each of _FIELDS."""
        self._unreadable = 0

    def _take(self, count: int, unknown_phase: int, complete: list[CompleteEvent]) -> None:
        events: list[CompleteEvent | Instant] = [*complete]
        memory = [event for event in events if isinstance(event, Instant) and event.name in (_ALLOCATION, _FAILED)]
        dated = [(event, _args(event)) for event in memory if event.ts is not None]
        readable = [(event, args) for event, args in dated if args is not None]
        part = self._columns(readable)
        super()._take(count, unknown_phase, [event for event in events if isinstance(event, CompleteEvent)])
        self._unreadable += len(memory) - len(readable)
        self._parts.append(part)

    def _columns(self, readable: list[tuple[Instant, tuple[int, ...]]]) -> tuple[NDArray[Any], ...]:
        events = [event for event, _ in readable]
        fields = np.frombuffer(array("q", [number for _, args in readable for number in args]), np.int64)
        return (
            nanoseconds([event.ts for event in events], self._exact),
            np.array([self._threads.number(event.pid, event.tid) for event in events], np.int32),
            np.array([event.name == _FAILED for event in events], np.bool_),
            *fields.reshape(-1, len(_FIELDS)).T,
        )

    def memory_events(self, base_ns: int) -> MemoryEvents:
        """Return the memory events; *base_ns* is what the file adds to all times."""
        if not any(len(part[0]) for part in self._parts):
            return replace(NO_MEMORY_EVENTS, unreadable=self._unreadable)
        time, thread, failed, size, address, allocated, reserved, kind, device = map(
            np.concatenate, zip(*self._parts, strict=True)
        )
        # Stable: of events at one time, which files rounded to µs have, the first in the file counts first.
        order = np.argsort(time, kind="stable")
        order = order[np.abs(time[order] - np.median(time)) < _DAY]
        return MemoryEvents(
            time_ns=time[order] + base_ns,
            bytes=size[order],
            address=address[order],
            allocated=allocated[order],
            reserved=reserved[order],
            device_type=kind[order].astype(np.int32),
            device=device[order].astype(np.int32),
            thread=thread[order],
            failed=failed[order],
            unreadable=self._unreadable + len(time) - len(order),
        )


def has_memory_events(source: Source) -> bool:
    """Return whether a file may hold memory events: whether their name is in its text.

    Raises:
        TraceError: the file is missing, empty or an archive, or can't be read.
    """
    before = b""
    with open_decompressed(source) as stream:
        chunks = ChunkedStream(stream)
        while not chunks.ended:
            chunk = chunks.read_chunk()
            if _MARK in before + chunk[: len(_MARK)] or _MARK in chunk:
                return True
            before = chunk[-len(_MARK) :]
    return False


def _args(event: Instant) -> tuple[int, ...] | None:
    """Return the values of _FIELDS; None where one is not a whole number, or no size is given."""
    try:
        args = _DECODER.decode(event.args)
    except DAMAGE:
        return None
    allocated = TOTAL_UNKNOWN if args.allocated is None else _whole(args.allocated)
    fields = args.bytes, args.address, allocated, args.reserved, args.device_type, args.device
    values = [value for value in map(_whole, fields) if value is not None]
    if len(values) < len(fields) or not values[0]:
        return None
    kind, device = values[-2:]
    return tuple(values) if 0 <= kind < 1 << 15 and -1 <= device < 1 << 15 else None


_MAX_NUMBER = 1 << 62
"""Sums of two such numbers fit into 64 bits."""


def _whole(value: object) -> int | None:
    """Return a whole number, which may be spelled 5.0 or "-5"; None for other values."""
    if type(value) is int:
        return value if -_MAX_NUMBER <= value < _MAX_NUMBER else None
    positive = value[1:] if isinstance(value, str) and value[:1] == "-" else -value if isinstance(value, float) else ""
    number = as_count(positive)
    return as_count(value) if number is None else -number
