"""Columns with the memory events of a file, which ``profile_memory=True`` adds: ``[memory]`` and ``[OutOfMemory]``.

Figures of time do not need them, so that only what shows memory reads them.
"""

from __future__ import annotations

from array import array
from typing import Any, cast

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.readers.kineto.columns.events import Columns
from dptrace.readers.kineto.columns.operators import long_or_module
from dptrace.readers.kineto.columns.timestamps import nanoseconds
from dptrace.readers.kineto.event_schema import (
    DAMAGE,
    CompleteEvent,
    Instant,
    MemoryArgs,
    as_count,
    events_with_instants,
)
from dptrace.readers.memory_events import NO_MEMORY_EVENTS, TOTAL_UNKNOWN, MemoryEvents
from dptrace.readers.sources.source import Source
from dptrace.readers.stream import ChunkedStream, open_decompressed

__all__ = ["MemoryColumns", "has_memory_events"]

_ALLOCATION, _FAILED = "[memory]", "[OutOfMemory]"
_MARK = _ALLOCATION.encode()
_DAY = 86_400 * 10**9
"""Longer than any recording."""
_DECODER: msgspec.json.Decoder[MemoryArgs] = msgspec.json.Decoder(MemoryArgs)
_FIELDS = ("bytes", "address", "allocated", "reserved", "device_type", "device")


class MemoryColumns(Columns):
    """The columns of a file with modules however short, and those of its memory events."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[tuple[NDArray[Any], ...]] = []
        """Per chunk: time, thread, whether it failed, then one column for each of _FIELDS."""
        self._unreadable = 0

    def _complete_events(self, text: bytes) -> tuple[int, int, list[CompleteEvent]]:
        count, unknown, events = events_with_instants(text, self._exact, self._with_comm_args)
        return count, unknown, cast("list[CompleteEvent]", events)  # _take sorts them apart

    def _wanted(self, events: list[CompleteEvent], category: NDArray[np.uint8]) -> NDArray[np.bool_]:
        return long_or_module(events, category)

    def _take(self, count: int, unknown_phase: int, complete: list[CompleteEvent]) -> None:
        events: list[CompleteEvent | Instant] = [*complete]
        instants = [event for event in events if isinstance(event, Instant)]
        readable = [
            (event, args)
            for event in instants
            if event.name in (_ALLOCATION, _FAILED) and event.ts is not None and (args := _args(event)) is not None
        ]
        part = self._columns(readable)
        super()._take(count, unknown_phase, [event for event in events if isinstance(event, CompleteEvent)])
        self._unreadable += sum(event.name in (_ALLOCATION, _FAILED) for event in instants) - len(readable)
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
    values = [value for field in fields if (value := _whole(field)) is not None]
    if len(values) < len(fields) or not values[0]:
        return None
    kind, device = values[-2:]
    return tuple(values) if 0 <= kind < 1 << 15 and -1 <= device < 1 << 15 else None


_LARGEST = 1 << 62


def _whole(value: object) -> int | None:
    """Return a whole number, which may be spelled 5.0 or "-5"; None for other values."""
    if type(value) is int:
        return value if -_LARGEST <= value < _LARGEST else None
    positive = value[1:] if isinstance(value, str) and value[:1] == "-" else -value if isinstance(value, float) else ""
    number = as_count(positive)
    return as_count(value) if number is None else -number
