"""A Kineto trace file as columns: every quirk of the format lives here and in textstream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.errors import TraceError
from dptrace.intervals import Int64
from dptrace.textstream import Piece, pieces
from dptrace.trace import Category, CommArgs, Trace

__all__ = ["read_trace"]

_CATEGORIES = {
    # Categories of schema version 1 as torch writes them since 2022, then the spellings of 2021.
    "cpu_op": Category.CPU_OP,
    "user_annotation": Category.ANNOTATION,
    "cuda_runtime": Category.LAUNCH,
    "cuda_driver": Category.LAUNCH,
    "hip_runtime": Category.LAUNCH,
    "hip_driver": Category.LAUNCH,
    "xpu_runtime": Category.LAUNCH,
    "xpu_driver": Category.LAUNCH,
    "privateuse1_runtime": Category.LAUNCH,
    "privateuse1_driver": Category.LAUNCH,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMORY,
    "gpu_memset": Category.MEMORY,
    "operator": Category.CPU_OP,
    "runtime": Category.LAUNCH,
    "memcpy": Category.MEMORY,
    "memset": Category.MEMORY,
}
_UNUSED = -1

_ELEMENT_BYTES = {
    # Kineto writes NCCL metadata with c10's names (BFloat16), and Input types in C++'s (c10::BFloat16, long int).
    **dict.fromkeys(("byte", "char", "bool", "unsigned char", "signed char", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "quint8", "qint8"), 1),
    **dict.fromkeys(("short", "short int", "half", "bfloat16"), 2),
    **dict.fromkeys(("int", "float"), 4),
    **dict.fromkeys(("long", "long int", "double", "complexfloat"), 8),
    "complexdouble": 16,
}

# Below this many µs a double tells three decimals apart: its spacing is 2^-10 µs, just under a nanosecond, so the
# fraction, times 1000, rounds to the true one. Files of spring 2024 carry epoch µs with decimals (1.7e15): too many.
_EXACT_MICROSECONDS = float(2**43)


class _Args(msgspec.Struct, frozen=True, gc=False):
    correlation: int = -1
    device: int | str | None = None
    stream: int | str | None = None
    collective: str = msgspec.field(default="", name="Collective name")
    in_elements: int = msgspec.field(default=0, name="In msg nelems")
    out_elements: int = msgspec.field(default=0, name="Out msg nelems")
    group_size: int = msgspec.field(default=0, name="Group size")
    dtype: str = ""
    group: str = msgspec.field(default="", name="Process Group Name")
    seq: int = msgspec.field(default=-1, name="Seq")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")


class _Event(msgspec.Struct, frozen=True, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | int | float | None = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: int | float | str | None = None
    dur: int | float | None = None
    args: _Args | None = None


class _ExactEvent(_Event, frozen=True, gc=False):
    ts: int | Decimal | None = None  # type: ignore[assignment]


class _Metadata(msgspec.Struct, frozen=True):
    """What stands around the list of events; of any type, since files are written by many hands."""

    base: Any = msgspec.field(default=None, name="baseTimeNanoseconds")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    devices_2021: Any = msgspec.field(default=None, name="computeProperties")


_CLOSING_TRIES = 1000
"""Brackets after the last event that are tried as the end of the list; Kineto leaves a handful."""

_EVENTS = msgspec.json.Decoder(list[_Event])
_EXACT_EVENTS = msgspec.json.Decoder(list[_ExactEvent])
_DAMAGE = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError)


@dataclass
class _Columns:
    """The columns of a file while it is read, a chunk's arrays at a time."""

    names: dict[str, int] = field(default_factory=dict)
    threads: dict[tuple[object, object], int] = field(default_factory=dict)
    chunks: list[tuple[Int64, ...]] = field(default_factory=list)
    comm: dict[int, CommArgs] = field(default_factory=dict)
    events: int = 0
    dropped: int = 0
    """Events that could not be decoded."""
    relevant: int = 0

    def add(self, events: Sequence[_Event]) -> None:
        """Reduce decoded events to columns; only complete events of the known categories stay."""
        self.events += len(events)
        code = _CATEGORIES
        kept = [
            event
            for event in events
            if event.ph == "X" and event.cat is not None and event.cat.lower() in code and event.ts is not None
        ]
        if not kept:
            return
        count = len(kept)
        start = _nanoseconds([event.ts for event in kept])
        length = _nanoseconds([event.dur or 0 for event in kept])
        names, threads = self.names, self.threads
        column = [
            start,
            start + length,
            np.fromiter((code[event.cat.lower()] for event in kept), np.int64, count),  # type: ignore[union-attr]
            np.fromiter((names.setdefault(str(event.name), len(names)) for event in kept), np.int64, count),
            np.fromiter((threads.setdefault((event.pid, event.tid), len(threads)) for event in kept), np.int64, count),
            *_launch_columns(kept),
        ]
        for index, event in enumerate(kept):
            if event.args is not None and (comm := _comm_args(str(event.name), event.args)) is not None:
                self.comm[self.relevant + index] = comm
        self.relevant += count
        self.chunks.append(tuple(column))


def _launch_columns(kept: list[_Event]) -> list[Int64]:
    """Give correlation, device and stream; events without them get -1."""
    count = len(kept)
    args = [event.args or _NO_ARGS for event in kept]
    return [
        np.fromiter((arg.correlation for arg in args), np.int64, count),
        np.fromiter((_small(arg.device) for arg in args), np.int64, count),
        # A HIP copy's launch gives its stream as an address in hex; only device events give a number.
        np.fromiter((arg.stream if type(arg.stream) is int else -1 for arg in args), np.int64, count),
    ]


def _small(device: object) -> int:
    return device if type(device) is int and 0 <= device < 1 << 16 else -1


_NO_ARGS = _Args()


def _nanoseconds(microseconds: list[Any]) -> Int64:
    """Turn µs, as int, float or Decimal, into whole ns without rounding error."""
    values: NDArray[Any] = np.array(microseconds)
    if values.dtype.kind == "i":
        if np.abs(values).max(initial=0) >= 2**52:
            raise OverflowError("a time beyond any clock")
        return values.astype(np.int64) * 1000
    if values.dtype.kind == "f" and not any(type(value) is int and value > 2**43 for value in microseconds):
        if np.abs(values).max(initial=0) >= _EXACT_MICROSECONDS:
            raise _NeedsDecimal
        whole: NDArray[np.float64] = np.floor(values)
        # The fraction apart: the product of the whole number with 1000 would be rounded to half a nanosecond.
        return whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)
    if any(type(value) is float and abs(value) >= _EXACT_MICROSECONDS for value in microseconds):
        raise _NeedsDecimal
    exact = [Decimal(value) * 1000 for value in microseconds]
    if any(not abs(value) < 2**63 for value in exact):
        raise OverflowError("a time beyond any clock")
    return np.fromiter((int(value.to_integral_value()) for value in exact), np.int64)


class _NeedsDecimal(Exception):
    """The chunk's times do not fit doubles: decode it again with their decimal text."""


def _comm_args(name: str, args: _Args) -> CommArgs | None:
    """Give what an event says of its collective, if it says anything."""
    if args.collective:
        size = max(args.in_elements, args.out_elements) * _ELEMENT_BYTES.get(args.dtype.lower(), 0)
        return CommArgs(args.collective, max(size, 0), args.dtype, args.group, args.group_size, args.seq)
    if name.startswith("gloo:"):
        size, dtype = _tensor_bytes(bytes(args.dims), bytes(args.types))
        return CommArgs(name.removeprefix("gloo:"), size, dtype)
    return None


def _tensor_bytes(dims: bytes, types: bytes) -> tuple[int, str]:
    """Give the bytes of an event's input tensors, from ``Input Dims`` and ``Input type``, and their first dtype."""
    try:
        shapes, dtypes = msgspec.json.decode(dims), msgspec.json.decode(types)
        total, first = 0, ""
        for shape, dtype in zip(shapes, dtypes, strict=False):
            size = _ELEMENT_BYTES.get(str(dtype).removeprefix("c10::").lower(), 0)
            for tensor in shape if shape and isinstance(shape[0], list) else [shape]:
                total += size * int(np.prod(tensor, dtype=np.int64)) if size else 0
            first = first or (str(dtype) if size else "")
        return total, first
    except (*_DAMAGE, TypeError):
        return 0, ""


def _decode(text: bytes, columns: _Columns) -> None:
    try:
        columns.add(_EVENTS.decode(text))
    except _NeedsDecimal:
        columns.add(_EXACT_EVENTS.decode(text))


def _add_piece(text: bytes, between: bytes, columns: _Columns) -> None:
    """Decode the events of a piece; when one of them is damaged, each alone, and count the damaged ones."""
    try:
        _decode(b"[" + text + b"]", columns)
        return
    except _DAMAGE:
        parts = text.split(between) if between else [text]
    opening = between[between.rfind(b"{") :] if between else b""
    for index, part in enumerate(parts):
        single = (opening if index else b"") + part + (b"}" if index < len(parts) - 1 else b"")
        try:
            _decode(b"[" + single + b"]", columns)
        except _DAMAGE:
            columns.dropped += 1


def _finish(path: Path, piece: Piece, columns: _Columns) -> tuple[_Metadata, list[str]]:
    """Decode the last piece with the rest of the document; give the metadata and notes on what is missing."""
    cut = piece.text.rfind(piece.between) if piece.between else -1
    whole, rest = (piece.text[: cut + 1], piece.text[cut + 1 :].lstrip(b" \t\r\n,")) if cut > 0 else (b"", piece.text)
    if whole:
        _add_piece(whole, piece.between, columns)
    if not piece.damage and (metadata := _end(piece.head, rest, columns)) is not None:
        return metadata, []
    with suppress(*_DAMAGE):
        _decode(b"[" + rest + b"]", columns)
    why = piece.damage or "it ends in the middle"
    note = (
        f"{path.name}: {why}; the job may have been killed while writing it. "
        f"Read: the {columns.events:,} whole events before the break; later steps are missing."
    )
    return _metadata(piece.head, b"]}") or _Metadata(), [note]


def _end(head: bytes, rest: bytes, columns: _Columns) -> _Metadata | None:
    """Decode the last events and what follows their list; nothing when the document is not closed."""
    end = -1
    for _ in range(_CLOSING_TRIES):
        end = rest.find(b"]", end + 1)
        if end < 0:
            return None
        # The first bracket after which the document is whole is the one that closes the list of events.
        if (metadata := _metadata(head, rest[end:])) is not None:
            if body := rest[:end].strip():
                _add_piece(body, b"", columns)
            return metadata
    return None


def _metadata(head: bytes, tail: bytes) -> _Metadata | None:
    """Decode the document around an emptied list of events; nothing if it is no document."""
    try:
        if head == b"[":
            return _Metadata() if msgspec.json.decode(head + tail) == [] else None
        return msgspec.json.decode(head + tail, type=_Metadata)
    except _DAMAGE:
        return None


def read_trace(path: Path) -> Trace:
    """Read one rank's trace.

    Raises:
        TraceError: not a file that torch.profiler wrote, or nothing of it is left.
    """
    columns = _Columns()
    metadata = _Metadata()
    notes: list[str] = []
    for piece in pieces(path):
        if piece.last:
            metadata, notes = _finish(path, piece, columns)
        else:
            _add_piece(piece.text, piece.between, columns)
    if not columns.relevant:
        raise _nothing(path, columns, notes)
    return _assemble(path, columns, metadata, notes)


def _nothing(path: Path, columns: _Columns, notes: Iterable[str]) -> TraceError:
    reason = " ".join(notes)
    if columns.events:
        return TraceError(
            f"{path}: holds {columns.events:,} events, but none of an operator, an annotation or a kernel: it is "
            f"not a trace of torch.profiler. {reason}".strip()
        )
    return TraceError(f"{path}: holds no events. {reason}".strip())


def _assemble(path: Path, columns: _Columns, metadata: _Metadata, notes: list[str]) -> Trace:
    start, end, category, name, thread, correlation, device, stream = (
        np.concatenate(parts) for parts in zip(*columns.chunks, strict=True)
    )
    # Within 146 years of the epoch, so that no sum with the clock's base leaves 64 bits.
    possible = (np.abs(start) < 2**62) & (end < 2**62)
    good = possible & (end >= start)
    columns.dropped += int((~possible).sum())
    if columns.dropped:
        notes.append(f"{path.name}: {columns.dropped:,} events could not be decoded and are left out.")
    if dropped := int((possible & ~good).sum()):
        notes.append(f"{path.name}: {dropped:,} events with a negative duration are left out.")
    # By start, the longer first, so that what encloses an event stands before it.
    order = np.lexsort((-end, start))
    order = order[good[order]]
    position = {int(old): new for new, old in enumerate(order)} if columns.comm else {}
    base = metadata.base
    base_ns = base if type(base) is int and 0 <= base < 2**62 else 0
    info = metadata.distributed
    info = info if isinstance(info, dict) else {}
    return Trace(
        path=str(path),
        rank=_whole(info.get("rank")),
        world_size=_whole(info.get("world_size")),
        backend=str(info.get("backend", "")),
        start_ns=start[order] + base_ns,
        end_ns=end[order] + base_ns,
        category=category[order].astype(np.uint8),
        name=name[order].astype(np.int32),
        names=tuple(columns.names),
        thread=thread[order].astype(np.int32),
        correlation=correlation[order],
        device=device[order].astype(np.int32),
        stream=stream[order],
        comm={position[old]: args for old, args in columns.comm.items() if old in position},
        device_names=_device_names(metadata.devices or metadata.devices_2021),
        notes=tuple(notes),
    )


def _whole(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _device_names(properties: object) -> dict[int, str]:
    if not isinstance(properties, list):
        return {}
    devices = [device for device in properties if isinstance(device, dict) and type(device.get("id")) is int]
    return {device["id"]: str(device.get("name", "")) for device in devices}
