"""A trace file's JSON text, split between events, so that the whole text is never in memory."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.errors import TraceError
from dptrace.readers.formats import is_flight_dump
from dptrace.readers.kineto.event_schema import DAMAGE
from dptrace.readers.source import Source
from dptrace.readers.stream import ChunkedStream, EventPiece

# The structure of JSON text that is not whole: where its list of events begins, and where events meet.
#
# Keys may have any name, order and spelling, and values any nesting. No text is decoded that a caller decodes later,
# unless braces within strings hide the structure.

BLANK = b" \t\r\n,"
"""Bytes that may surround an event."""
LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
"""The beginning of the list, where damage hides the structure of a document."""

# Unrolled: alternatives within a repetition take exponential time where the closing quotation mark is missing.
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_KEY = re.compile(rb"[\s,]*(" + _STRING + rb")\s*:\s*", re.DOTALL)
_CLOSING = re.compile(rb"[\s,]*\}")
_SCALAR = re.compile(rb"(?:" + _STRING + rb'|[^\s,{}\[\]"]+)(?=\s*[,}])', re.DOTALL)
_OPENING = re.compile(rb"[\s,\0]*(?:\{|(\[)(?=\s*\{))")
"""The beginning of a document: of an object, or of a bare list of events."""
_END = re.compile(rb"[\s\0]*\Z")
_BETWEEN_EVENTS = re.compile(rb'\}\s{0,99}(?:,\s{0,99})?\{(?:\s{0,99}"(?:[^"\\]|\\.){0,99}"\s{0,99}:)?', re.DOTALL)
"""The separator of two events, up to the first key of the second one."""
_KINETOS = re.compile(rb'\}\s{0,99}(?:,\s{0,99})?\{\s{0,99}"(?:ph|name|cat|pid|tid|ts|dur|args)"')
"""The same of Kineto's events, where damage hides the structure; devices, listed behind the events, begin with "id"."""


class State(Enum):
    """Why no list of events was found."""

    MORE = "more"
    """The text ends before."""
    EVENT = "event"
    """The first object is an event itself: a file of bare events."""
    NONE = "none"
    """The document is whole and has no such list."""
    BROKEN = "broken"
    """The text is not JSON."""


def find_list(text: bytes, at: int = 0, inside: bool = False) -> int | State:
    """Return the position after the bracket that opens the list ``traceEvents`` of a document itself.

    A list of that name deeper in the document is not the one. Of several documents one after the other, the first with
    such a list counts.

    Args:
        at: where to begin: at a document or, with *inside*, after a value in one.
    """
    has_phase = False
    while True:
        if not inside:
            opening = _OPENING.match(text, at)
            if opening is None or opening[1]:
                return opening.end() if opening else _ended(text, at) or State.BROKEN
            at, inside = opening.end(), True
        if (key := _KEY.match(text, at)) is not None:
            name = _name(key[1])
            if name == "traceEvents" and text[key.end() : key.end() + 1] == b"[":
                return key.end() + 1
            has_phase = has_phase or name == "ph"
            if (at := _after_value(text, key.end())) < 0:
                return State.MORE
        elif (closing := _CLOSING.match(text, at)) is not None:
            at, inside = closing.end(), False
            if ended := State.EVENT if has_phase else _ended(text, at):
                return ended
        else:
            return State.MORE if _may_be_a_key(text[at:]) else State.BROKEN


def _ended(text: bytes, at: int) -> State | None:
    return State.NONE if _END.match(text, at) else None


def _name(key: bytes) -> str | None:
    try:
        return str(json.loads(key)) if b"\\" in key else key[1:-1].decode()
    except ValueError:
        return None


def _may_be_a_key(rest: bytes) -> bool:
    """Return whether more text could make a key of this one."""
    rest = rest.lstrip(b", \t\r\n")
    return not rest or (rest[:1] == b'"' and re.fullmatch(_STRING[:-1] + rb'\\?(?:"\s*)?', rest, re.DOTALL) is not None)


def _after_value(text: bytes, at: int) -> int:
    """Return the position after the value that begins here; -1 if the text ends before."""
    if text[at : at + 1] in (b"{", b"["):
        return closing_bracket(text, at + 1)
    found = _SCALAR.match(text, at)
    return found.end() if found else -1


def cut_between_events(text: bytes, separator: bytes) -> tuple[int, bytes]:
    """Return the position of a brace that seems to end an event which another one follows, and how they are separated.

    The position is -1 if there is none. It may be within an event whose arguments hold objects that look like events:
    that shows when the text is decoded.

    Args:
        separator: how the events before were separated; empty if that is not known.
    """
    cut = text.rfind(separator) if separator else -1
    if 2 * cut >= len(text):
        return cut, separator
    # Events of another kind may follow: those of metadata, or of another tool, begin with another key.
    found = count_brackets(text)
    if found.last_end > cut:
        between = _BETWEEN_EVENTS.match(text, found.some_end)
        return found.last_end, between.group() if between else b""
    ends_here = found.closed >= 0 and is_list(text[: found.closed])
    if cut < 0 and not ends_here and (between := _KINETOS.search(text)):
        return text.rfind(between.group()), between.group()
    return cut, separator


def is_list(events: bytes) -> bool:
    """Return whether a text is JSON values separated by commas; one may come before and after."""
    try:
        msgspec.json.decode(b"".join((b"[", events.strip(BLANK), b"]")), type=msgspec.Raw)
    except DAMAGE:
        return False
    return True


def values_of(events: bytes) -> list[bytes] | None:
    """Return the texts of JSON values separated by commas; None if the text is something else."""
    try:
        return list(map(bytes, _VALUES.decode(b"[" + events.strip(BLANK) + b"]")))
    except DAMAGE:
        return None


_VALUES: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])


class Brackets(NamedTuple):
    """What counting the brackets of a text that begins with an event shows."""

    last_end: int
    """Position of the brace that ends the last event which another one follows; -1 if none does."""
    some_end: int
    """The same of an event in the middle of the text."""
    closed: int
    """Position of the first bracket that closes what is open before the text: the list of events; -1 without one."""
    is_within_event: bool
    """Whether the text ends within an event, and not in a string."""
    is_too_deep: bool
    """Whether the counting ended where more brackets are open than in any event."""


_FIRST_BLOCK, _MAX_BLOCK = 1 << 12, 1 << 20
"""Bytes looked at first, and at most at once."""
MAX_DEPTH = 100_000
"""Brackets that are open at once: no JSON library decodes as many."""
_QUOTE, _BACKSLASH, _OPEN, _CLOSE = b'"\\{}'
_CASE = 0x20
"""The bit by which a brace differs from a square bracket."""


def count_brackets(text: bytes, at: int = 0) -> Brackets:
    """Follow the structure of a text from *at*, up to the bracket that closes what is open before.

    Right for any text of whole events, the last of which may be truncated. It takes as long as decoding the text.
    """
    depth, inside, escaped, size = 0, False, 0, _FIRST_BLOCK
    last, some, top, top_at = -1, -1, 0, -1
    while at < len(text):
        block = np.frombuffer(text, np.uint8, min(size, len(text) - at), at)
        quotes, escaped = _quotes(block, escaped)
        kinds = block | _CASE
        marks = np.flatnonzero((kinds == _OPEN) | (kinds == _CLOSE))
        marks = marks[(np.searchsorted(quotes, marks) & 1) == inside]
        opens = kinds[marks] == _OPEN
        depths = depth + np.cumsum(np.where(opens, 1, -1))
        beyond = np.flatnonzero((depths < 0) | (depths > MAX_DEPTH))
        shown = int(beyond[0]) if len(beyond) else len(marks)
        tops = marks[:shown][depths[:shown] == opens[:shown]]
        signs, places = np.append(top, block[tops]), np.append(top_at, tops + at)
        meet = places[:-1][(signs[:-1] == _CLOSE) & (signs[1:] == _OPEN)]
        if len(meet):
            last, some = int(meet[-1]), int(meet[len(meet) // 2])
        if len(beyond):
            is_too_deep = bool(depths[shown] > 0)
            return Brackets(last, some, -1 if is_too_deep else at + int(marks[shown]), is_too_deep, is_too_deep)
        top, top_at = int(signs[-1]), int(places[-1])
        depth = int(depths[-1]) if len(depths) else depth
        inside ^= bool(len(quotes) & 1)
        at, size = at + len(block), min(2 * size, _MAX_BLOCK)
    return Brackets(last, some, -1, depth > 0 and not inside, False)


def _quotes(block: NDArray[np.uint8], escaped: int) -> tuple[NDArray[np.int64], int]:
    """Return the places in a block of the quotation marks that begin or end a string.

    Args:
        escaped: 1 if an odd number of backslashes stands before the block, else 0; the same of its end is returned.
    """
    quotes = np.flatnonzero(block == _QUOTE)
    if not escaped and not (block == _BACKSLASH).any():
        return quotes, 0
    others = np.append(-1 - escaped, np.flatnonzero(block != _BACKSLASH))
    # A mark is escaped behind an odd number of backslashes.
    before = others[np.searchsorted(others, quotes) - 1]
    kept: NDArray[np.int64] = quotes[(quotes - before) & 1 == 1]
    return kept, int(len(block) - 1 - others[-1]) & 1


def closing_bracket(text: bytes, at: int) -> int:
    """Return the position after the bracket that closes the one that is open before *at*, or -1 if none does."""
    closed = count_brackets(text, at).closed
    return closed + 1 if closed >= 0 else -1


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
            chunks.stop(f"{MAX_DEPTH:,} brackets are open at once, as in no trace")
        elif len(rest) > _STRETCH:
            chunks.stop(f"{len(rest) >> 20:,} MB follow in which no event ends")
        else:
            # Twice as much for the next try, so that a long event is not searched again with each chunk.
            enough = 2 * len(rest)
    between = between if between in rest else b""
    yield EventPiece(rest, head, between or cut_between_events(rest, b"")[1], last=True, damage=chunks.damage)


_LEADING = b"\xef\xbb\xbf \t\r\n"
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
    text = text.lstrip(_LEADING)
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
    return joined if text else joined.lstrip(_LEADING)


READS = "it reads what torch.profiler's export_chrome_trace writes, exports of Nsight Systems, and Perfetto's traces."
"""The end of a sentence on another program's file."""
_PICKLE = (
    "a pickle, which dptrace does not load since loading one runs its code; https://pytorch.org/memory_viz shows what "
    "torch.cuda.memory._dump_snapshot writes"
)
_OTHER_FORMATS = (
    # Other formats that users name as a trace, by their first bytes.
    (b"\x28\xb5\x2f\xfd", "compressed with zstd, which dptrace does not read; unpack it: zstd -d FILE"),
    (b"BZh", "compressed with bzip2, which dptrace does not read; unpack it: bunzip2 FILE"),
    (b"\xfd7zXZ", "compressed with xz, which dptrace does not read; unpack it: unxz FILE"),
    *((bytes((0x80, version)), _PICKLE) for version in (2, 3, 4, 5)),
)


def _no_trace(source: Source, start: bytes, damage: str) -> TraceError:
    name = source.address
    if is_flight_dump(source.name, start):
        advice = shlex.join(["dptrace", "flight", name])
        return TraceError(f"{name}: is a dump of torch's flight recorder, no trace; find out what hangs with: {advice}")
    if (kind := next((kind for sign, kind in _OTHER_FORMATS if start.startswith(sign)), None)) is not None:
        return TraceError(f"{name}: is {kind}")
    if b'"rocprofiler-sdk-tool"' in start:
        return TraceError(f"{name}: is output of rocprofv3, which dptrace does not read; {READS}")
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
