"""A trace file's JSON text, split between events, so that the whole text is never in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dptrace.errors import TraceError
from dptrace.readers.kineto.structure import BLANK, DEEPEST, LIST, State, count_brackets, cut_between_events, find_list
from dptrace.readers.memory_snapshot import PICKLE
from dptrace.readers.sources.source import Source
from dptrace.readers.stream import ChunkedStream, EventPiece

__all__ = ["pieces"]

_EVENT = re.compile(rb'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id)"')
"""The beginning of an event of Kineto's, where damage hides the structure."""

_STRETCH = 64 << 20
"""Maximum bytes held without the end of an event: no event is that long."""
_HEAD = 128 << 20
"""Maximum bytes held before the first event; the groups of a job of thousands of ranks fill a part of it."""
_LOST = 16 << 20
"""Bytes without the list after which the structure of a document counts as damaged."""


def pieces(source: Source, start: bytes, chunks: ChunkedStream) -> Iterator[EventPiece]:
    """Split the text of a file between events.

    Args:
        start: the file's first bytes, read from *chunks* before.

    Raises:
        TraceError: the file is not JSON, or JSON without a list of events.
    """
    head, rest = _head(source, chunks, start)
    between, enough = b"", 0
    while not chunks.ended:
        rest += chunks.read_chunk()
        if len(rest) < enough or chunks.ended:
            continue
        cut, between = cut_between_events(rest, between)
        if cut > 0:
            yield EventPiece(rest[: cut + 1], head, between, last=False)
            rest = rest[cut + 1 :].lstrip(BLANK)
            enough = 0
        elif count_brackets(rest).is_too_deep:
            chunks.stop(f"{DEEPEST:,} brackets are open at once, as in no trace")
        elif len(rest) > _STRETCH:
            chunks.stop(f"{len(rest) >> 20:,} MB follow in which no event ends")
        else:
            # Twice as much for the next try, so that a long event is not searched again with each chunk.
            enough = 2 * len(rest)
    between = between if between in rest else b""
    yield EventPiece(rest, head, between or cut_between_events(rest, b"")[1], last=True, damage=chunks.damage)


_FOREWORD = b"\xef\xbb\xbf \t\r\n"
"""What may precede a document: the UTF-8 byte order mark and white space."""


_UTF_16 = (
    # The byte order mark, or how a document begins: each character has a NUL behind it or before it.
    ("UTF-16", re.compile(rb"\xff\xfe|\xfe\xff")),
    ("UTF-16LE", re.compile(rb"[\s{\[]\0")),
    ("UTF-16BE", re.compile(rb"\0[\s{\[]")),
)


def _head(source: Source, chunks: ChunkedStream, text: bytes) -> tuple[bytes, bytes]:
    """Read up to the list of events; return the text before and after its opening bracket.

    A file without a list may hold bare events, one per line: then the text before is empty.
    """
    if (encoding := next((name for name, sign in _UTF_16 if sign.match(text)), None)) is not None:
        raise TraceError(
            f"{source.address}: is UTF-16 text; write it as UTF-8: iconv -f {encoding} -t UTF-8 FILE > NEW.json"
        )
    text = text.lstrip(_FOREWORD)
    while True:
        if text[:1] == b"[":
            return b"[", text[1:]
        if text and text[:1] != b"{":
            break
        found = find_list(text) if text and len(text) <= _LOST else State.MORE
        if isinstance(found, State) and _is_lost(found, text, chunks):
            found = _first_match(text)
        if found is State.EVENT:
            return b"", text
        if not isinstance(found, State):
            return text[:found], text[found:]
        if len(text) > _HEAD:
            chunks.stop(f"the first {len(text) >> 20:,} MB hold no event")
        if chunks.ended:
            break
        text = _twice_as_much(text, chunks)
    raise _no_trace(source, text, chunks.damage)


def _is_lost(state: State, text: bytes, chunks: ChunkedStream) -> bool:
    """Return whether the structure of a document is damaged before its events."""
    return state is State.BROKEN or (state is State.MORE and (len(text) > _LOST or chunks.ended))


def _first_match(text: bytes) -> int | State:
    """Find the list, or bare events, in text that is not JSON."""
    if found := LIST.search(text):
        return found.end()
    return State.EVENT if _EVENT.match(text) else State.MORE


def _twice_as_much(text: bytes, chunks: ChunkedStream) -> bytes:
    """Read on, so that text of any length is searched only a few times."""
    parts, size = [text], len(text)
    while size <= 2 * len(text) and not chunks.ended:
        parts.append(chunks.read_chunk())
        size += len(parts[-1])
    joined = b"".join(parts)
    return joined if text else joined.lstrip(_FOREWORD)


_OTHER_FORMATS = (
    # Other formats that users name as a trace, by their first bytes.
    (b"\x28\xb5\x2f\xfd", "compressed with zstd, which dptrace does not read; unpack it: zstd -d FILE"),
    (b"BZh", "compressed with bzip2, which dptrace does not read; unpack it: bunzip2 FILE"),
    (b"\xfd7zXZ", "compressed with xz, which dptrace does not read; unpack it: unxz FILE"),
    *((bytes((0x80, version)), PICKLE) for version in (2, 3, 4, 5)),
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
