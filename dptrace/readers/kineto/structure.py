"""The structure of JSON text that is not whole: where its list of events begins, and where events meet.

Keys may have any name, order and spelling, and values any nesting. No text is decoded that a caller decodes later,
unless braces within strings hide the structure.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.readers.kineto.event_schema import DAMAGE

__all__ = [
    "BLANK",
    "DEEPEST",
    "LIST",
    "Brackets",
    "State",
    "closing_bracket",
    "count_brackets",
    "cut_between_events",
    "find_list",
    "is_list",
    "values_of",
]

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
_BETWEEN = re.compile(rb'\}\s{0,99}(?:,\s{0,99})?\{(?:\s{0,99}"(?:[^"\\]|\\.){0,99}"\s{0,99}:)?', re.DOTALL)
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
        return closing_bracket(text, 0, at)
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
        between = _BETWEEN.match(text, found.some_end)
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


_FEW, _MANY = 1 << 12, 1 << 20
"""Bytes looked at first, and at most at once."""
DEEPEST = 100_000
"""Brackets that are open at once: no JSON library decodes as many."""
_QUOTE, _BACKSLASH, _OPEN, _CLOSE = b'"\\{}'
_CASE = 0x20
"""The bit by which a brace differs from a square bracket."""


def count_brackets(text: bytes, at: int = 0) -> Brackets:
    """Follow the structure of a text from *at*, up to the bracket that closes what is open before.

    Right for any text of whole events, the last of which may be truncated. It takes as long as decoding the text.
    """
    depth, inside, escaped, size = 0, False, 0, _FEW
    last, some, top, top_at = -1, -1, 0, -1
    while at < len(text):
        block = np.frombuffer(text, np.uint8, min(size, len(text) - at), at)
        quotes, escaped = _quotes(block, escaped)
        kinds = block | _CASE
        marks = np.flatnonzero((kinds == _OPEN) | (kinds == _CLOSE))
        marks = marks[(np.searchsorted(quotes, marks) & 1) == inside]
        opens = kinds[marks] == _OPEN
        depths = depth + np.cumsum(np.where(opens, 1, -1))
        beyond = np.flatnonzero((depths < 0) | (depths > DEEPEST))
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
        at, size = at + len(block), min(2 * size, _MANY)
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


def _backslashes(text: bytes, end: int) -> int:
    before = end
    while before and text[before - 1] == _BACKSLASH:
        before -= 1
    return end - before


_MARK = re.compile(rb'["{}\[\]]')
_MOST_MARKS = 4_000_000
"""Maximum quotation marks and brackets counted; the text after a real file's last event has some thousand."""


def closing_bracket(text: bytes, depth: int, at: int = 0) -> int:
    """Return the position after the bracket that closes the *depth* brackets open at *at*, or -1 if none does.

    With depth 0 it is the end of the next list or object. Linear in the text; gives up after ``_MOST_MARKS``.
    """
    for _ in range(_MOST_MARKS):
        if (mark := _MARK.search(text, at)) is None:
            return -1
        at = mark.end()
        sign = mark.group()
        if sign == b'"':
            if (at := _end_of_text(text, at)) < 0:
                return -1
        elif sign in b"{[" and depth <= DEEPEST:
            depth += 1
        elif sign in b"{[":
            return -1
        else:
            depth -= 1
            if depth <= 0:
                return at
    return -1


def _end_of_text(text: bytes, at: int) -> int:
    for _ in range(_MOST_MARKS):
        if (at := text.find(b'"', at) + 1) == 0 or _backslashes(text, at - 1) % 2 == 0:
            return at or -1
    return -1
