"""A trace file's decompressed bytes, a chunk at a time, and the pieces of event text that a format makes of them."""

from __future__ import annotations

import importlib
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Protocol

from dptrace.errors import TraceError, UsageError
from dptrace.readers.sources.open import open_source, peek
from dptrace.readers.sources.source import Source

try:  # isal decompresses about twice as fast as zlib; it has wheels for the common machines only
    _zlib: ModuleType = importlib.import_module("isal.isal_zlib")
except ImportError:  # pragma: no cover - machines without an isal wheel
    _zlib = zlib

__all__ = ["CHUNK", "ByteStream", "ChunkedStream", "Piece", "open_decompressed"]

CHUNK = 1 << 20
"""Bytes of JSON decoded at a time: large enough that cutting costs nothing, small enough to stay in cache."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some whole events of a file, or its last piece."""

    text: bytes
    """Events with commas between them; of the last piece: what follows, with the end of the document."""
    head: bytes
    """The document up to and with the bracket that opens the list of events; empty in a file of bare events."""
    between: bytes
    """The bytes that part two events in this file; empty when it holds at most one."""
    last: bool
    damage: str = ""
    """Why the text stops before its end, of the last piece of a damaged file."""


@contextmanager
def open_decompressed(source: Source) -> Iterator[ByteStream]:
    """Open a trace file; gzipped bytes are decompressed while they are read, whatever the file's name.

    Raises:
        TraceError: the file is missing, empty or an archive, or can't be read.
    """
    with open_source(source) as stream:
        try:
            magic = peek(stream, 4)
        except OSError as error:
            raise TraceError(f"{source.address}: can't be read: {error}.") from None
        if not magic:
            raise TraceError(f"{source.address}: is empty; the job may have ended before its trace was written.")
        if magic == b"PK\x03\x04":
            raise TraceError(
                f"{source.address}: is a zip archive in disguise; let its name end in .zip, or give what is in it."
            )
        yield _Gunzip(stream, source) if magic[:2] == b"\x1f\x8b" else stream


class ByteStream(Protocol):
    """Anything that bytes can be read from."""

    def read(self, size: int, /) -> bytes: ...


class _Gunzip:
    """A gzipped stream, one or several members, that gives all it can before it reports damage."""

    # gzip.GzipFile loses up to a buffer of good data when the file is cut off.

    def __init__(self, stream: ByteStream, source: Source) -> None:
        self.stream, self.address = stream, source.address
        self.reopen = None if source.single_pass else partial(open_source, source)
        self.error: Exception | None = None
        self.member = _zlib.decompressobj(wbits=_GZIP)
        self.input = b""
        self.bytes_in = self.bytes_out = 0
        self.max_ratio = _most_expansion()

    def read(self, size: int, /) -> bytes:
        """Give up to *size* bytes, none at the end.

        Raises:
            EOFError: the data ends within a member.
            TraceError: it is a bomb.
        """
        if self.error is not None:
            raise self.error
        while True:
            if self.member.eof:
                self.input = self.member.unused_data.lstrip(b"\0") or self._more()
                if not self.input:
                    return b""
                self.member = _zlib.decompressobj(wbits=_GZIP)
            data = self.input or self._more()
            try:
                output: bytes = self.member.decompress(data, size)
            except _DAMAGE as error:
                if self.reopen is None:
                    raise
                self.error = error
                return self._saved()
            self.input = self.member.unconsumed_tail
            if output:
                self.bytes_out += len(output)
                if self.bytes_out > max(_HARMLESS, self.bytes_in * self.max_ratio):
                    raise self._bomb()
                return output
            if not data and not self.member.eof:
                raise EOFError("it ends before its end mark")

    def _saved(self) -> bytes:
        """Give what stands before the damage: a block that has any gives nothing, so go there again, byte by byte."""
        assert self.reopen is not None
        saved, given, member = bytearray(), 0, zlib.decompressobj(wbits=_GZIP)
        with self.reopen() as stream, suppress(zlib.error):
            while data := stream.read(_INPUT if given < self.bytes_out - _INPUT * 200 else 1):
                while data:
                    output = member.decompress(data)
                    given += len(output)
                    if given > self.bytes_out:
                        saved += output[-(given - self.bytes_out) :]
                    self.bytes_out = max(self.bytes_out, given)
                    data = member.unused_data
                    if member.eof:
                        member = zlib.decompressobj(wbits=_GZIP)
                if len(saved) > _INPUT * 200:
                    break
        return bytes(saved)

    def _more(self) -> bytes:
        data = self.stream.read(_INPUT)
        self.bytes_in += len(data)
        return data

    def _bomb(self) -> TraceError:
        return TraceError(
            f"{self.address}: looks like a gzip bomb: {self.bytes_in:,} bytes of it hold over {self.bytes_out:,}, and "
            f"traces shrink to a twentieth, not to a {self.max_ratio:,.0f}th. If it is a trace all the same, unpack "
            f"it with gunzip, or set {_EXPANSION}=0 for no limit."
        )


def _most_expansion() -> float:
    setting = os.environ.get(_EXPANSION, "")
    try:
        most = float(setting or 200)
    except ValueError:
        raise UsageError(
            f"{_EXPANSION}={setting!r}: is no number; give how many times a file may grow, or 0."
        ) from None
    return most if most > 0 else math.inf


_GZIP = 31
"""zlib's window size for a gzip header."""
_INPUT = 1 << 18
"""Compressed bytes read at a time."""
_HARMLESS = 1 << 30
"""Bytes that a file may unpack to whatever it is like."""
_EXPANSION = "DPTRACE_GZIP_LIMIT"
"""Names the variable that says how many times its compressed size a file may unpack to."""


_DAMAGE: Any = (EOFError, OSError, zlib.error, _zlib.error)


class ChunkedStream:
    """A stream that remembers that it ended, and whether too early."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.ended, self.damage = False, ""

    def read_chunk(self) -> bytes:
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

    def stop(self, why: str) -> None:
        """Read no further."""
        self.ended, self.damage = True, why
