"""A trace file's JSON text in pieces that end between two events, so that the whole is never held at once."""

from __future__ import annotations

import importlib
import math
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from dptrace.errors import TraceError, UsageError
from dptrace.readers.perfetto.packets import begins_with_packets
from dptrace.readers.sources.open import open_source, peek
from dptrace.readers.sources.source import Source

try:  # isal decompresses about twice as fast as zlib; it has wheels for the common machines only
    _zlib: ModuleType = importlib.import_module("isal.isal_zlib")
except ImportError:  # pragma: no cover - machines without an isal wheel
    _zlib = zlib

__all__ = ["LIST", "Piece", "pieces"]

CHUNK = 1 << 20
"""Bytes of JSON decoded at a time: large enough that cutting costs nothing, small enough to stay in cache."""

# The first event of the list and what parts it from the next, as this file spells it. Kineto begins an event with
# "ph"; hand-made and re-written files begin with other keys. A text inside a string can't match: its quote marks
# are escaped.
LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST = rb'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id)"'
_BETWEEN = re.compile(rb"\}\s*(?:,\s*)?" + _FIRST)
_EVENT = re.compile(_FIRST)

_LONGEST_BETWEEN = 256
"""Bytes that part two events at most, as far as a part of them may end what was read before."""
_STRETCH = 64 << 20
"""Bytes without the end of an event that are held at most: no event is that long."""
_HEAD = 128 << 20
"""Bytes before the first event that are held at most; the groups of a job of many thousand ranks fill some."""


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


def pieces(file: Source | Path) -> Iterator[Piece]:
    """Cut the text of *file*, gzipped or not, between events.

    Raises:
        TraceError: the file is missing, empty, no JSON, or JSON without a list of events.
    """
    source = Source.of(file)
    # glibc gives memory that was freed back to the system, and clears what it takes anew, beyond a limit that grows
    # with the largest block ever freed. A chunk is more than the limit is at first: a tenth of all time went there.
    bytes(16 << 20)
    with _open(source) as stream:
        chunks = _ChunkedStream(stream)
        start = chunks.read_chunk()
        if begins_with_packets(start):
            yield from _of_packets(source, start, chunks)
            return
        head, rest = _head(source, chunks, start)
        between, known = b"", 0
        while not chunks.ended:
            rest += chunks.read_chunk()
            cut = rest.rfind(between, known) if between else -1
            if cut < 0 and (found := _BETWEEN.search(rest, known)):
                # The first, or, in a file that spells its first events in another way, another one.
                between = found.group()
                cut = rest.rfind(between)
            if cut > 0 and not chunks.ended:
                yield Piece(rest[: cut + 1], head, between, last=False)
                rest = rest[rest.index(b"{", cut) :]
            elif len(rest) > _STRETCH and not chunks.ended:
                chunks.stop(f"{len(rest) >> 20:,} MB follow in which no event ends")
            known = max(len(rest) - _LONGEST_BETWEEN, 0)
        if rest.find(between) < 0 or not between:
            found = _BETWEEN.search(rest)
            between = found.group() if found else b""
        yield Piece(rest, head, between, last=True, damage=chunks.damage)


def _of_packets(source: Source, start: bytes, chunks: _ChunkedStream) -> Iterator[Piece]:
    """Give the events of a Perfetto trace as the JSON that Kineto would have written."""
    from dptrace.readers.perfetto.pftrace import BETWEEN, kineto_text

    for head, text, damage in kineto_text(source, start, chunks):
        if damage is None:
            yield Piece(text, head, BETWEEN, last=False)
        else:
            yield Piece(text if damage else text + b"]}", head, BETWEEN, last=True, damage=damage)


@contextmanager
def _open(source: Source) -> Iterator[_Bytes]:
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


class _Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Gunzip:
    """A gzipped stream, one or several members, that gives all it can before it reports damage."""

    # gzip.GzipFile loses up to a buffer of good data when the file is cut off.

    def __init__(self, stream: _Bytes, source: Source) -> None:
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


class _ChunkedStream:
    """A stream that remembers that it ended, and whether too early."""

    def __init__(self, stream: _Bytes) -> None:
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


_FOREWORD = b"\xef\xbb\xbf \t\r\n"
"""What may stand before a document: the mark that some editors put before UTF-8, and white space."""


def _head(source: Source, chunks: _ChunkedStream, text: bytes) -> tuple[bytes, bytes]:
    """Read up to the list of events; give the text before and after its opening bracket.

    A file without a list may hold events all the same, one to a line: then nothing stands before them.
    """
    text, known = text.lstrip(_FOREWORD), 0
    while True:
        if text[:1] == b"[":
            return b"[", text[1:]
        if text and text[:1] != b"{":
            break
        if found := LIST.search(text, known):
            return text[: found.end()], text[found.end() :]
        if _EVENT.match(text):
            return b"", text
        if len(text) > _HEAD:
            chunks.stop(f"{len(text) >> 20:,} MB stand there")
        if chunks.ended:
            break
        known = max(len(text) - _LONGEST_BETWEEN, 0)
        text = (text + chunks.read_chunk()) if text else chunks.read_chunk().lstrip(_FOREWORD)
    raise _no_trace(source, text, chunks.damage)


_OTHER_FORMATS = (
    # What users have where a trace should be, by its first bytes.
    (b"\xff\xfe", "UTF-16 text; write it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW.json"),
    (b"\xfe\xff", "UTF-16 text; write it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW.json"),
    (b"{\0", "UTF-16 text; write it as UTF-8: iconv -f UTF-16LE -t UTF-8 FILE > NEW.json"),
    (b"\0{", "UTF-16 text; write it as UTF-8: iconv -f UTF-16BE -t UTF-8 FILE > NEW.json"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd, which dptrace does not read; unpack it: zstd -d FILE"),
    (b"BZh", "compressed with bzip2, which dptrace does not read; unpack it: bunzip2 FILE"),
    (b"\xfd7zXZ", "compressed with xz, which dptrace does not read; unpack it: unxz FILE"),
)


def _no_trace(source: Source, start: bytes, damage: str) -> TraceError:
    name = source.address
    if (kind := next((kind for sign, kind in _OTHER_FORMATS if start.startswith(sign)), None)) is not None:
        return TraceError(f"{name}: is {kind}")
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
