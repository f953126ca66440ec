"""A trace file's JSON text in pieces that end between two events, so that the whole is never held at once."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dptrace.errors import TraceError
from dptrace.readers.sources.source import Source
from dptrace.readers.stream import ChunkedStream, Piece

__all__ = ["LIST", "pieces"]

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


def pieces(source: Source, start: bytes, chunks: ChunkedStream) -> Iterator[Piece]:
    """Cut the text of a file between events.

    Args:
        start: the file's first bytes, read from *chunks* before.

    Raises:
        TraceError: the file is not JSON, or JSON without a list of events.
    """
    head, rest = _head(source, chunks, start)
    between, known = b"", 0
    while not chunks.ended:
        rest += chunks.read_chunk()
        cut = rest.rfind(between, known) if between else -1
        if cut < 0 and (found := _BETWEEN.search(rest, known)):
            # The first separator, or another one in a file that spells its first events differently.
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


_FOREWORD = b"\xef\xbb\xbf \t\r\n"
"""What may stand before a document: the mark that some editors put before UTF-8, and white space."""


def _head(source: Source, chunks: ChunkedStream, text: bytes) -> tuple[bytes, bytes]:
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
