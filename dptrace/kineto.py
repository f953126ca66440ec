"""A Kineto trace file as columns: what the document is like around its events, and what to do when it is damaged."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dptrace.columns import DAMAGE, Columns
from dptrace.errors import TraceError
from dptrace.legible import legible
from dptrace.source import Source
from dptrace.textstream import Piece, pieces
from dptrace.trace import Trace

__all__ = ["read_trace"]


class _Metadata(msgspec.Struct, frozen=True):
    """What stands around the list of events; of any type, since files are written by many hands."""

    base: Any = msgspec.field(default=None, name="baseTimeNanoseconds")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    devices_2021: Any = msgspec.field(default=None, name="computeProperties")


_CLOSING_TRIES = 1000
"""Brackets after the last event that are tried as the end of the list; Kineto leaves a handful."""


def _add_piece(text: bytes, between: bytes, columns: Columns) -> None:
    """Decode the events of a piece; the damaged ones among them are left out and counted."""
    try:
        columns.decode(b"[" + text + b"]")
        return
    except DAMAGE:
        parts = text.split(between) if between else [text]
    opening, last = between[between.rfind(b"{") :] if between else b"", len(parts) - 1
    events = [(opening if i else b"") + part + (b"}" if i < last else b"") for i, part in enumerate(parts)]
    _add_events(events, columns)


def _add_events(events: list[bytes], columns: Columns) -> None:
    """Decode damaged events by halves, so that one in a million costs no more than its neighbours."""
    if len(events) == 1:
        _mend(events[0], columns)
        return
    middle = len(events) // 2
    for half in (events[:middle], events[middle:]):
        try:
            columns.decode(b"[" + b",".join(half) + b"]")
        except DAMAGE:
            _add_events(half, columns)


def _mend(event: bytes, columns: Columns) -> None:
    """Read one damaged event all the same, if it is only its texts that are damaged."""
    text = _CONTROL.sub(b" ", event).decode("utf-8", "replace")
    try:
        columns.decode(b"[" + _SURROGATE.sub(r"\\ufffd", text).encode() + b"]")
        columns.mended += 1
    except DAMAGE:
        columns.dropped += 1


_CONTROL = re.compile(rb"[\x00-\x1f]")
"""Raw control characters, which no JSON text may hold; between texts they are white space."""
_SURROGATE = re.compile(r"\\ud[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..)\\ud[c-f]..", re.IGNORECASE)
"""Halves of characters beyond 16 bits that stand alone."""


def _finish(source: Source, piece: Piece, columns: Columns) -> tuple[_Metadata, str]:
    """Decode the last piece with the rest of the document; give the metadata, and where the file is cut off."""
    cut = piece.text.rfind(piece.between) if piece.between else -1
    whole, rest = (piece.text[: cut + 1], piece.text[cut + 1 :].lstrip(b" \t\r\n,")) if cut > 0 else (b"", piece.text)
    if whole:
        _add_piece(whole, piece.between, columns)
    if (metadata := _end(piece.head, rest, columns)) is not None:
        return metadata, ""
    with suppress(*DAMAGE):
        columns.decode(b"[" + rest[: rest.rfind(b"}") + 1] + b"]")
    why = piece.damage or "it ends in the middle"
    cut_off = f"{source.name}: {why}, after {columns.events:,} events; the job may have been killed while writing it."
    return _metadata(piece.head, b"]}") or _Metadata(), cut_off


def _end(head: bytes, rest: bytes, columns: Columns) -> _Metadata | None:
    """Decode the last events and what follows their list; nothing when the document is not closed."""
    end = -1
    for _ in range(_CLOSING_TRIES):
        end = rest.find(b"]", end + 1)
        if end < 0:
            return None
        # The bracket that closes the list of events is the first with whole events before it and after which the
        # document is whole; a bracket within an event that was cut off can look like it from one side only.
        metadata = _metadata(head, rest[end:])
        if metadata is not None and _is_whole(body := rest[:end].strip()):
            if body:
                _add_piece(body, b"", columns)
            return metadata
    return None


def _is_whole(events: bytes) -> bool:
    try:
        msgspec.json.decode(b"[" + events + b"]")
    except DAMAGE:
        return False
    return True


def _metadata(head: bytes, tail: bytes) -> _Metadata | None:
    """Decode the document around an emptied list of events; nothing if it is no document."""
    try:
        if head == b"[":
            return _Metadata() if msgspec.json.decode(head + tail) == [] else None
        return msgspec.json.decode(head + tail, type=_Metadata)
    except DAMAGE:
        return None


def read_trace(file: Source | Path) -> Trace:
    """Read one rank's trace.

    Raises:
        TraceError: not a file that torch.profiler wrote, or nothing of it is left.
    """
    source = Source.of(file)
    columns = Columns()
    metadata = _Metadata()
    cut_off = ""
    for piece in pieces(source):
        if piece.last:
            metadata, cut_off = _finish(source, piece, columns)
        else:
            _add_piece(piece.text, piece.between, columns)
    if not columns.kept:
        raise _nothing(source, columns, cut_off)
    return _assemble(source, columns, metadata, cut_off)


def _nothing(source: Source, columns: Columns, reason: str) -> TraceError:
    if columns.events:
        return TraceError(
            f"{source.address}: holds {columns.events:,} events, but none of an operator, an annotation or a kernel: "
            f"it is not a trace of torch.profiler. {reason}".strip()
        )
    return TraceError(f"{source.address}: holds no events. {reason}".strip())


def _assemble(source: Source, columns: Columns, metadata: _Metadata, cut_off: str) -> Trace:
    start, end, category, name, thread, correlation, device, stream = (
        np.concatenate(parts) for parts in zip(*columns.chunks, strict=True)
    )
    # Within 146 years of the epoch, so that no sum with the clock's base leaves 64 bits.
    possible = (np.abs(start) < 2**62) & (end < 2**62)
    good = possible & (end >= start)
    columns.dropped += int((~possible).sum())
    notes = _told(source.name, columns, cut_off, backwards=int((possible & ~good).sum()))
    # By start, the longer first, so that what encloses an event stands before it.
    order = np.lexsort((-end, start))
    order = order[good[order]]
    position = np.full(len(start), -1, np.int64)
    position[order] = np.arange(len(order))
    base = metadata.base
    base_ns = base if type(base) is int and 0 <= base < 2**62 else 0
    info = metadata.distributed
    info = info if isinstance(info, dict) else {}
    return Trace(
        path=legible(source.address),
        rank=_whole(info.get("rank")),
        world_size=_whole(info.get("world_size")),
        start_ns=start[order] + base_ns,
        end_ns=end[order] + base_ns,
        category=category[order],
        name=name[order],
        names=columns.names,
        thread=thread[order],
        correlation=correlation[order],
        device=device[order],
        stream=stream[order],
        comm={int(position[old]): args for old, args in columns.comm.items() if position[old] >= 0},
        device_names=_device_names(metadata.devices or metadata.devices_2021),
        notes=tuple(notes),
        cut=bool(cut_off) and not columns.whole,
    )


def _told(name: str, columns: Columns, cut_off: str, backwards: int) -> list[str]:
    """Say what was missing, mended or left out, a sentence each."""
    notes = []
    if cut_off:
        rest = "Nothing of the recording is missing" if columns.whole else "Any step may lack work that was in the rest"
        notes.append(f"{cut_off} {rest}.")
    if columns.mended:
        notes.append(f"{name}: {_events(columns.mended)} with damaged texts, read with signs in their place.")
    if columns.dropped:
        notes.append(f"{name}: {_events(columns.dropped)} left out that could not be decoded.")
    if backwards:
        notes.append(f"{name}: {_events(backwards)} left out with a negative duration.")
    return notes


def _events(count: int) -> str:
    return f"{count:,} event" + "s" * (count != 1)


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 31 else None


def _device_names(properties: object) -> dict[int, str]:
    if not isinstance(properties, list):
        return {}
    devices = [device for device in properties if isinstance(device, dict) and type(device.get("id")) is int]
    return {device["id"]: str(device.get("name", "")) for device in devices}
