"""Read a memory snapshot of torch's CUDA allocator in its JSON form: segments, blocks, and what happened before it.

``torch.cuda.memory._dump_snapshot`` writes a pickle, which runs code when it is loaded: it is refused. The same data as
JSON is ``json.dump(torch.cuda.memory._snapshot(), file)``.
"""

from __future__ import annotations

import re

import msgspec

from dptrace.errors import TraceError
from dptrace.readers.source import Source
from dptrace.readers.stream import CHUNK, ByteStream, open_decompressed

__all__ = ["PICKLE", "Block", "Frame", "Segment", "Snapshot", "TraceEntry", "is_snapshot", "read_snapshot"]

PICKLE = (
    "a pickle, which dptrace does not load since loading one runs its code; if torch.cuda.memory._dump_snapshot wrote "
    "it, write JSON instead: json.dump(torch.cuda.memory._snapshot(), open('snapshot.json', 'w'))"
)
_START = re.compile(rb'\s*\{\s*"(?:segments|device_traces|allocator_settings|external_annotations)"\s*:')
_MOST_BYTES = 4 << 30
"""Largest snapshot that is read, since it is in memory as a whole."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A call on the stack of an allocation, innermost first."""

    filename: str = ""
    name: str = ""
    line: int = 0


class Block(msgspec.Struct, frozen=True):
    """A part of a segment."""

    size: int
    state: str = ""
    """``active_allocated``, ``active_awaiting_free`` (another stream still uses it) or ``inactive``."""
    requested_size: int = 0
    """What was asked for, before it was rounded."""
    address: int = 0
    frames: list[Frame] = []


class Segment(msgspec.Struct, frozen=True):
    """What one cudaMalloc returned."""

    total_size: int
    device: int = 0
    stream: int = 0
    blocks: list[Block] = []


class TraceEntry(msgspec.Struct, frozen=True):
    """Something that the allocator did."""

    action: str
    """``alloc``, ``free_requested``, ``free_completed``, ``segment_alloc``, ``oom`` …"""
    size: int = 0
    frames: list[Frame] = []


class Snapshot(msgspec.Struct, frozen=True):
    """The state of the allocator on all devices of a process."""

    segments: list[Segment]
    device_traces: list[list[TraceEntry]] = []
    """By device; empty unless ``_record_memory_history`` was called."""


def is_snapshot(source: Source) -> bool:
    """Return whether a file begins as a snapshot does, as JSON or as a pickle."""
    if source.single_pass:
        return False
    try:
        with open_decompressed(source) as stream:
            start = stream.read1(CHUNK)
    except TraceError:
        return False
    return _START.match(start) is not None or _is_pickle(start)


def _is_pickle(start: bytes) -> bool:
    return len(start) > 1 and start[0] == 0x80 and 2 <= start[1] <= 5


def read_snapshot(source: Source) -> Snapshot:
    """Read a snapshot, gzipped or not.

    Raises:
        TraceError: the file is a pickle, damaged, or no snapshot.
    """
    with open_decompressed(source) as stream:
        text = _whole(stream, source)
    if _is_pickle(text):
        raise TraceError(f"{source.address}: is {PICKLE}")
    try:
        return msgspec.json.decode(text, type=Snapshot)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise TraceError(
            f"{source.address}: is not a memory snapshot of torch, or damaged ({error}). Write it with "
            "json.dump(torch.cuda.memory._snapshot(), file)."
        ) from None


def _whole(stream: ByteStream, source: Source) -> bytes:
    parts, size = list[bytes](), 0
    while part := stream.read1(CHUNK):
        parts.append(part)
        size += len(part)
        if size > _MOST_BYTES:
            raise TraceError(
                f"{source.address}: holds more than {_MOST_BYTES >> 30} GiB; a snapshot is not that large."
            )
    return b"".join(parts)
