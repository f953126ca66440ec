"""A trace file's decompressed bytes, a chunk at a time, and the pieces of event text that a format makes of them."""

from __future__ import annotations

import importlib
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import ModuleType
from typing import Protocol

import msgspec

from dptrace.errors import TraceError, UsageError
from dptrace.readers.source import Source
from dptrace.readers.storage import DAMAGE, open_source

try:  # isal decompresses about twice as fast as zlib; it has wheels for the common machines only
    _zlib: ModuleType = importlib.import_module("isal.isal_zlib")
except ImportError:  # pragma: no cover - machines without an isal wheel
    _zlib = zlib

CHUNK = 1 << 20
"""Bytes of JSON decoded at a time: large enough that splitting costs nothing, small enough to stay in cache."""


class EventPiece(msgspec.Struct, frozen=True):
    """Some whole events of a file as JSON text, or the end of the file."""

    text: bytes
    """Events separated by commas; in the last piece also the rest of the document."""
    head: bytes
    """The document up to and including the bracket that opens the list of events; empty in a file of bare events."""
    between: bytes
    """The separator of two events in this file; empty if the file holds at most one event."""
    last: bool
    damage: str = ""
    """Why the text stops early, in the last piece of a damaged file."""


@contextmanager
def open_decompressed(source: Source) -> Iterator[ByteStream]:
    """Open a trace file; gzipped bytes are decompressed while they are read, whatever the file's name.

    Raises:
        TraceError: the file is missing, empty or an archive, or can't be read.
    """
    with open_source(source) as stream:
        try:
            magic = stream.peek(4)[:4]
        except DAMAGE as error:
            raise TraceError(f"{source.address}: can't be read: {error}.") from None
        if not magic:
            raise TraceError(f"{source.address}: is empty; the job may have ended before it wrote its trace.")
        if magic == b"PK\x03\x04":
            raise TraceError(f"{source.address}: is a zip archive; rename it to end in .zip, or unpack it.")
        yield _Gunzip(stream, source) if magic[:2] == b"\x1f\x8b" else stream


class ByteStream(Protocol):
    """Anything that bytes can be read from, at most *size* at a time, without a second try after an error."""

    def read1(self, size: int, /) -> bytes: ...


class _Gunzip:
    """A gzip stream of one or more members that returns all readable data before it reports damage."""

    # gzip.GzipFile loses up to a buffer of good data if the file is truncated.

    def __init__(self, stream: ByteStream, source: Source) -> None:
        self.stream, self.address = stream, source.address
        self.reopen = None if source.single_pass else partial(open_source, source)
        self.error: Exception | None = None
        self.member = _zlib.decompressobj(wbits=_GZIP)
        self.input = b""
        self.bytes_in = self.bytes_out = 0
        self.max_ratio = _max_ratio()

    def read1(self, size: int, /) -> bytes:
        """Return up to *size* bytes; empty at the end.

        Raises:
            EOFError: the data ends within a member.
            TraceError: the file is a gzip bomb.
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
            except DAMAGE as error:
                if self.reopen is None:
                    raise
                self.error = error
                return self._before_damage()
            self.input = self.member.unconsumed_tail
            if output:
                self.bytes_out += len(output)
                if self.bytes_out > max(_MAX_UNCHECKED, self.bytes_in * self.max_ratio):
                    raise self._bomb()
                return output
            if not data and not self.member.eof:
                raise EOFError("it ends before its end mark")

    def _before_damage(self) -> bytes:
        """Return the data just before the damage: a damaged block yields nothing, so decompress it byte by byte."""
        assert self.reopen is not None
        saved, produced, member = bytearray(), 0, zlib.decompressobj(wbits=_GZIP)
        with self.reopen() as stream, suppress(zlib.error):
            while data := stream.read(_BLOCK if produced < self.bytes_out - _BLOCK * 200 else 1):
                while data:
                    output = member.decompress(data)
                    produced += len(output)
                    if produced > self.bytes_out:
                        saved += output[-(produced - self.bytes_out) :]
                    self.bytes_out = max(self.bytes_out, produced)
                    data = member.unused_data
                    if member.eof:
                        member = zlib.decompressobj(wbits=_GZIP)
                if len(saved) > _BLOCK * 200:
                    break
        return bytes(saved)

    def _more(self) -> bytes:
        data = self.stream.read1(_BLOCK)
        self.bytes_in += len(data)
        return data

    def _bomb(self) -> TraceError:
        return TraceError(
            f"{self.address}: looks like a gzip bomb: {self.bytes_in:,} bytes expand to over {self.bytes_out:,}. "
            f"Traces expand about 20 times; the limit is {self.max_ratio:,.0f}. If this is a trace, unpack it with "
            f"gunzip, or set {_LIMIT_VARIABLE}=0 for no limit."
        )


def _max_ratio() -> float:
    setting = os.environ.get(_LIMIT_VARIABLE, "")
    try:
        ratio = float(setting or 200)
    except ValueError:
        raise UsageError(
            f"{_LIMIT_VARIABLE}={setting!r}: is not a number; set how many times its size a file may expand to, or 0."
        ) from None
    return ratio if ratio > 0 else math.inf


_GZIP = 31
"""zlib's window size for a gzip header."""
_BLOCK = 1 << 16
"""Bytes read at a time; this many are lost if the checksum at the end of a file in a zip is wrong."""
_MAX_UNCHECKED = 1 << 30
"""Bytes that any file may expand to."""
_LIMIT_VARIABLE = "DPTRACE_GZIP_LIMIT"
"""Environment variable: how many times its compressed size a file may expand to."""


class ChunkedStream:
    """A stream read in chunks, which records its end and any damage."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.ended, self.damage = False, ""
        # Gunzip loses nothing before damage, however much is read at a time.
        self._at_once = CHUNK if isinstance(stream, _Gunzip) else _BLOCK

    def read_chunk(self) -> bytes:
        """Return the next CHUNK bytes, or fewer at the end or before damage."""
        parts: list[bytes] = []
        size = 0
        while size < CHUNK and not self.ended:
            try:
                part = self.stream.read1(min(self._at_once, CHUNK - size))
            except DAMAGE as error:
                self.damage = f"the compressed data is truncated or damaged ({error})".replace("\n", " ")
                part = b""
            self.ended = not part
            size += len(part)
            parts.append(part)
        return b"".join(parts)

    def stop(self, why: str) -> None:
        """Stop reading, for the reason *why*."""
        self.ended, self.damage = True, why
