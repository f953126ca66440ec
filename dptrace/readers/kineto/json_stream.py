"""A trace file's JSON text, split between events, so that the whole text is never in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dptrace.errors import TraceError
from dptrace.readers.sources.source import Source
from dptrace.readers.stream import ChunkedStream, Piece

__all__ = ["LIST", "pieces"]

# The start of an event and the separator of two, as this file spells them. Kineto's events start with "ph"; files
# that were written by hand or rewritten start with other keys. Text inside a string can't match, since its quotation
# marks are escaped.
LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST = rb'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id)"'
_BETWEEN = re.compile(rb"\}\s*(?:,\s*)?" + _FIRST)
_EVENT = re.compile(_FIRST)

_LONGEST_BETWEEN = 256
"""Maximum length of a separator; that many bytes of a chunk are searched again with the next."""
_STRETCH = 64 << 20
"""Maximum bytes held without the end of an event: no event is that long."""
_HEAD = 128 << 20
"""Maximum bytes held before the first event; the groups of a job of thousands of ranks fill a part of it."""


def pieces(source: Source, start: bytes, chunks: ChunkedStream) -> Iterator[Piece]:
    """Split the text of a file between events.

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
"""What may precede a document: the UTF-8 byte order mark and white space."""


def _head(source: Source, chunks: ChunkedStream, text: bytes) -> tuple[bytes, bytes]:
    """Read up to the list of events; return the text before and after its opening bracket.

    A file without a list may hold bare events, one per line: then the text before is empty.
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
            chunks.stop(f"the first {len(text) >> 20:,} MB hold no event")
        if chunks.ended:
            break
        known = max(len(text) - _LONGEST_BETWEEN, 0)
        text = (text + chunks.read_chunk()) if text else chunks.read_chunk().lstrip(_FOREWORD)
    raise _no_trace(source, text, chunks.damage)


_OTHER_FORMATS = (
    # Other formats that users name as a trace, by their first bytes.
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
        return TraceError(f"{name}: {damage}, before any event; the job may have been killed while writing it.")
    if not start:
        return TraceError(f"{name}: holds only white space; the job may have ended before it wrote its trace.")
    if start[:1] != b"{":
        seen = start[:24].decode("utf-8", "replace").strip()
        return TraceError(
            f"{name}: is not JSON (it starts with {seen!r}). dptrace reads the traces that torch.profiler's "
            "export_chrome_trace writes, .json or .json.gz."
        )
    if not start.rstrip().endswith(b"}"):
        return TraceError(f"{name}: ends before its first event; the job may have been killed while writing it.")
    return TraceError(
        f"{name}: has no traceEvents; was it written by torch.profiler's export_chrome_trace? "
        "(run.json describes a run; name its folder instead.)"
        if source.name == "run.json"
        else f"{name}: has no traceEvents; was it written by torch.profiler's export_chrome_trace?"
    )
