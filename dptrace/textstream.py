"""A trace file's JSON text in pieces that end between two events, so that the whole is never held at once."""

from __future__ import annotations

import importlib
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from dptrace.errors import TraceError
from dptrace.source import Source, peeked

try:  # isal decompresses about twice as fast as zlib; it has wheels for the common machines only
    _zlib: ModuleType = importlib.import_module("isal.isal_zlib")
except ImportError:  # pragma: no cover - machines without an isal wheel
    _zlib = zlib

__all__ = ["Piece", "pieces"]

CHUNK = 4 << 20
"""Bytes of JSON decoded at a time: large enough that cutting costs nothing, small enough to stay in cache."""

# The first event of the list and what parts it from the next, as this file spells it. Kineto begins an event with
# "ph"; hand-made and re-written files begin with other keys. A text inside a string can't match: its quote marks
# are escaped.
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb'\}\s*,\s*\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id)"')


@dataclass(frozen=True, slots=True)
class Piece:
    """Some whole events of a file, or its last piece."""

    text: bytes
    """Events with commas between them; of the last piece: what follows, with the end of the document."""
    head: bytes
    """The document up to and with the bracket that opens the list of events."""
    between: bytes
    """The bytes that part two events in this file; empty when it holds at most one."""
    last: bool
    damage: str = ""
    """Why the text stops before its end, of the last piece of a damaged file."""


def pieces(file: Source | Path) -> Iterator[Piece]:
    """Cut the text of *file*, gzipped or not, between events.

    Raises:
        TraceError: the file is missing, empty, no JSON, or JSON without a list of events.
    """
    source = Source.of(file)
    with _open(source) as stream:
        reading = _Reading(stream)
        head, rest = _head(source, reading)
        between = b""
        while not reading.ended:
            rest += reading.more()
            cut = rest.rfind(between) if between else -1
            if cut < 0 and (found := _BETWEEN.search(rest)):
                # The first, or, in a file that spells its first events in another way, another one.
                between = found.group()
                cut = rest.rfind(between)
            if cut > 0 and not reading.ended:
                yield Piece(rest[: cut + 1], head, between, last=False)
                rest = rest[rest.index(b"{", cut) :]
        if rest.find(between) < 0 or not between:
            found = _BETWEEN.search(rest)
            between = found.group() if found else b""
        yield Piece(rest, head, between, last=True, damage=reading.damage)


@contextmanager
def _open(source: Source) -> Iterator[_Bytes]:
    with source.open() as stream:
        magic = peeked(stream, 4)
        if not magic:
            raise TraceError(f"{source.address}: is empty; the job may have ended before its trace was written.")
        if magic == b"PK\x03\x04":
            raise TraceError(f"{source.address}: is a zip archive; unpack it and give dptrace the files inside.")
        yield _Gunzip(stream) if magic[:2] == b"\x1f\x8b" else stream


class _Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Gunzip:
    """A gzipped stream, one or several members, that gives all it can before it reports damage."""

    # gzip.GzipFile loses up to a buffer of good data when the file is cut off.

    def __init__(self, stream: _Bytes) -> None:
        self.stream = stream
        self.member = _zlib.decompressobj(wbits=_GZIP)
        self.input = b""

    def read(self, size: int, /) -> bytes:
        """Give up to *size* bytes, none at the end.

        Raises:
            EOFError: the data ends within a member.
        """
        while True:
            if self.member.eof:
                self.input = self.member.unused_data.lstrip(b"\0") or self.stream.read(_INPUT)
                if not self.input:
                    return b""
                self.member = _zlib.decompressobj(wbits=_GZIP)
            data = self.input or self.stream.read(_INPUT)
            output: bytes = self.member.decompress(data, size)
            self.input = self.member.unconsumed_tail
            if output:
                return output
            if not data and not self.member.eof:
                raise EOFError("it ends before its end mark")


_GZIP = 31
"""zlib's window size for a gzip header."""
_INPUT = 1 << 18
"""Compressed bytes read at a time."""


_DAMAGE: Any = (EOFError, OSError, zlib.error, _zlib.error)


class _Reading:
    """A stream that remembers that it ended, and whether too early."""

    def __init__(self, stream: _Bytes) -> None:
        self.stream = stream
        self.ended, self.damage = False, ""

    def more(self) -> bytes:
        """Give about CHUNK further bytes, fewer at the end, and what came before any damage."""
        parts: list[bytes] = []
        size = 0
        while size < CHUNK and not self.ended:
            try:
                part = self.stream.read(CHUNK - size)
            except _DAMAGE as error:
                self.damage = f"the compressed data is cut off or damaged ({error})".replace("\n", " ")
                part = b""
            self.ended = not part
            size += len(part)
            parts.append(part)
        return b"".join(parts)


def _head(source: Source, reading: _Reading) -> tuple[bytes, bytes]:
    """Read up to the list of events; give the text before and after its opening bracket."""
    text = b""
    while not reading.ended:
        text += reading.more()
        start = text.lstrip(b"\xef\xbb\xbf \t\r\n")
        if start[:1] == b"[":
            return b"[", start[1:]
        if start and start[:1] != b"{":
            break
        if found := _LIST.search(start):
            return start[: found.end()], start[found.end() :]
    raise _no_trace(source, text.lstrip(b"\xef\xbb\xbf \t\r\n"), reading.damage)


def _no_trace(source: Source, start: bytes, damage: str) -> TraceError:
    name = source.address
    if damage:
        return TraceError(f"{name}: {damage} before any event; the job may have been killed while writing it.")
    if not start:
        return TraceError(f"{name}: holds nothing but white space; the job may have ended before it was written.")
    if start[:1] != b"{":
        seen = start[:24].decode("utf-8", "replace").strip()
        return TraceError(
            f"{name}: is not JSON (it begins with {seen!r}). dptrace reads the traces that torch.profiler's "
            "export_chrome_trace writes, .json or .json.gz."
        )
    if not start.rstrip().endswith(b"}"):
        return TraceError(f"{name}: ends before its first event; the job may have been killed while writing it.")
    return TraceError(
        f"{name}: has no traceEvents; was it written by torch.profiler's export_chrome_trace? "
        "(run.json describes a run; give dptrace the folder instead.)"
        if source.name == "run.json"
        else f"{name}: has no traceEvents; was it written by torch.profiler's export_chrome_trace?"
    )
