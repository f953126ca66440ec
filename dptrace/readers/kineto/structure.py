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

from dptrace.readers.kineto.event_schema import DAMAGE

__all__ = [
    "Brackets",
    "State",
    "closing_bracket",
    "count_brackets",
    "cut_between_events",
    "find_list",
    "is_list",
    "separator_of",
    "values_of",
]

# Unrolled: alternatives within a repetition take exponential time where the closing quotation mark is missing.
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_KEY = re.compile(rb"[\s,]*(" + _STRING + rb")\s*:\s*", re.DOTALL)
_CLOSING = re.compile(rb"[\s,]*\}")
_SCALAR = re.compile(rb"(?:" + _STRING + rb'|[^\s,{}\[\]"]+)(?=\s*[,}])', re.DOTALL)
_OPENING = re.compile(rb"[\s,\0]*\{")
_BETWEEN = re.compile(rb"\}\s*(?:,\s*)?\{")
_BETWEEN_WITH_KEY = re.compile(_BETWEEN.pattern + rb'\s*"(?:[^"\\]|\\.){0,99}"\s*:', re.DOTALL)
_MARKS = re.compile(_STRING + rb'|["{}\[\]]', re.DOTALL)
_MOST_CANDIDATES = 50
"""Maximum separators tried to learn how a file spells them."""


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
            if (opening := _OPENING.match(text, at)) is None:
                return State.BROKEN if text[at:].strip() else State.NONE
            at, inside = opening.end(), True
        if (key := _KEY.match(text, at)) is not None:
            name = _name(key[1])
            if name == "traceEvents" and text[key.end() : key.end() + 1] == b"[":
                return key.end() + 1
            has_phase = has_phase or name == "ph"
            if (at := _after_value(text, key.end())) < 0:
                return State.MORE
        elif (closing := _CLOSING.match(text, at)) is not None:
            if has_phase:
                return State.EVENT
            if not text[closing.end() :].strip(b"\0 \t\r\n"):
                return State.NONE
            at, inside = closing.end(), False
        else:
            return State.MORE if _may_be_a_key(text[at:]) else State.BROKEN


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


def separator_of(text: bytes) -> bytes:
    """Return how events are separated in a text that begins with one, up to the next one's first key if it has one.

    Empty if no whole event is followed by another.
    """
    for pattern in (_BETWEEN_WITH_KEY, _BETWEEN):
        for _, found in zip(range(_MOST_CANDIDATES), pattern.finditer(text), strict=False):
            if is_list(text[: found.start() + 1]):
                return found.group()
    return b""


def cut_between_events(text: bytes, separator: bytes, known: int = 0) -> int:
    """Return the position of a brace that seems to end an event which another one follows; -1 if none does.

    It may be within an event whose arguments hold objects that look like events: that shows when the text is decoded.

    Args:
        separator: how this file separates most events.
        known: where to begin; before it no event ends.
    """
    cut = text.rfind(separator, known) if separator else -1
    return cut if cut >= 0 else count_brackets(text).last_end


def is_list(events: bytes) -> bool:
    """Return whether a text is JSON values separated by commas; one may come before and after."""
    return values_of(events) is not None


def values_of(events: bytes) -> list[bytes] | None:
    """Return the texts of JSON values separated by commas; None if the text is something else."""
    try:
        return list(map(bytes, _VALUES.decode(b"[" + events.strip(b", \t\r\n") + b"]")))
    except DAMAGE:
        return None


_VALUES: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])


class Brackets(NamedTuple):
    """What counting the brackets of a text that begins with an event shows."""

    last_end: int
    """Position of the brace that ends the last event which another one follows; -1 if none does."""
    is_within_event: bool
    """Whether the text ends within an event, and neither in a string nor with a bracket that closes nothing."""


def count_brackets(text: bytes) -> Brackets:
    """Follow the structure of a text, which takes ten times as long as decoding it.

    Right for any text of whole events, the last of which may be truncated.
    """
    depth, end, last = 0, -1, -1
    for mark in _MARKS.finditer(text):
        sign = mark.group()
        if sign == b'"':
            return Brackets(last, False)  # a string that does not end
        if sign in (b"{", b"["):
            if depth == 0 and sign == b"{" and end >= 0:
                last = end
            depth += 1
        elif sign in (b"}", b"]"):
            depth -= 1
            if depth < 0:
                return Brackets(last, False)
            if depth == 0:
                end = mark.start() if sign == b"}" else -1
    return Brackets(last, depth > 0)


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
        elif sign in b"{[":
            depth += 1
        else:
            depth -= 1
            if depth <= 0:
                return at
    return -1


def _end_of_text(text: bytes, at: int) -> int:
    while (end := text.find(b'"', at)) >= 0:
        before = end
        while text[before - 1 : before] == b"\\" and before > at:
            before -= 1
        if (end - before) % 2 == 0:
            return end + 1
        at = end + 1
    return -1
