"""Decode the events of a piece of a trace file; repair or drop damaged ones, and count them."""

from __future__ import annotations

import re
from contextlib import suppress

from dptrace.readers.kineto.columns.events import DAMAGE, EventSink
from dptrace.readers.kineto.envelope import BLANK, is_closed_list, is_complete_list
from dptrace.readers.kineto.json_stream import LIST
from dptrace.readers.kineto.structure import count_brackets, is_list, values_of

__all__ = ["PieceDecoder", "add_stretch", "decode_whole", "take_events"]


class PieceDecoder:
    """Decodes the pieces of a file one after the other, in the order of the file; repairs or drops damaged events.

    A piece that is not whole events may be damaged, or end within an event whose arguments hold objects that look like
    events. It is held until the next one shows which::

        {"ph": 1, "a": [{"ph": 2},      held
        {"ph": 3}]}, {"ph": 4}          together they are whole events
    """

    def __init__(self, columns: EventSink) -> None:
        self._columns = columns
        self._held: list[bytes] = []
        self._is_within_event = False
        self._between = b""

    def add(self, text: bytes, between: bytes) -> None:
        """Decode a piece."""
        if self._held and not self._is_within_event and is_list(text):
            self.flush()
        if not self._held and decode_whole(text, between, self._columns):
            return
        self._between = between
        self._held.append(text)
        joined = b",".join(self._held)
        if decode_whole(joined, between, self._columns):
            self._held.clear()
            return
        last_end, self._is_within_event = count_brackets(joined)
        if last_end >= 0 and decode_whole(joined[: last_end + 1], between, self._columns):
            self._held = [joined[last_end + 1 :].lstrip(BLANK)]
        elif len(self._held) >= _MOST_HELD:
            self.flush()

    def flush(self) -> None:
        """Decode what is held as damaged events."""
        if self._held:
            text = b",".join(self._held)
            self._held.clear()
            add_stretch(text, self._between, self._columns)

    def with_held(self, head: bytes, text: bytes) -> bytes:
        """Return the last text of a file after what is held if they are whole events together; else decode that."""
        joined = b",".join([*self._held, text])
        if self._held and is_closed_list(head, joined):
            self._held.clear()
            return joined
        self.flush()
        return text


_MOST_HELD = 8
"""Maximum pieces that are held: damage may hide the structure of all text behind it."""


def decode_whole(text: bytes, between: bytes, columns: EventSink) -> bool:
    """Decode whole events, some of which may have fields of odd types; return False, adding none, for other text."""
    events = text if b"," in between else _with_commas(text, between)
    if _is_text(events):
        with suppress(*DAMAGE):
            columns.decode(b"".join((b"[", events, b"]")))  # one copy, where two additions would copy twice
            return True
    values = values_of(events)
    if values is not None:
        _add_events(values, columns)
    return values is not None


def _is_text(events: bytes) -> bool:
    """Return whether a text is UTF-8; the decoder does not look at keys and values that it skips."""
    if events.isascii():
        return True
    try:
        events.decode()
    except UnicodeDecodeError:
        return False
    return True


def add_stretch(text: bytes, between: bytes, columns: EventSink) -> None:
    """Decode the events of a text; repair or drop damaged ones, and count them."""
    text = text.strip(BLANK)
    if not text or decode_whole(text, between, columns):
        return
    parts = text.split(between) if between else [text]
    opening, last = between[between.index(b"{") :] if between else b"", len(parts) - 1
    torn = [(opening if i else b"") + part + (b"}" if i < last else b"") for i, part in enumerate(parts)]
    _add_events(torn, columns)


def _with_commas(text: bytes, between: bytes) -> bytes:
    if b"\n" in between:
        return _LINES.sub(b"},{", text)
    return text.replace(between, b"}," + between[1:]) if between else text


_LINES = re.compile(rb"\}[ \t\r]*\n\s*\{")
"""Where a line ends with one event and the next begins with another; no JSON string holds a line break."""


def _add_events(events: list[bytes], columns: EventSink) -> None:
    """Decode damaged events by bisection, so that one in a million costs little."""
    if len(events) == 1:
        _repair_events(events[0], columns)
        return
    middle = len(events) // 2
    for half in (events[:middle], events[middle:]):
        if not take_events(b",".join(half), columns):
            _add_events(half, columns)


def take_events(events: bytes, columns: EventSink) -> bool:
    """Decode events separated by commas; return False, without adding any, if they are damaged."""
    if not _is_text(events):
        return False
    try:
        columns.decode(b"[" + events + b"]")
    except DAMAGE:
        return False
    return True


def _repair_events(text: bytes, columns: EventSink) -> None:
    """Repair a damaged event, split it into several where they run together, or salvage what remains of it."""
    # Compiling its patterns takes 4 ms of each start, and few files are damaged.
    from dptrace.readers.kineto.repair import clean, escape_quotes, last_values, salvage, split_at_braces, split_events

    text = text.strip(BLANK)
    if take_events(last_values(text), columns):
        return
    if not text or take_events(clean(text), columns):
        columns.repaired += 1
        return
    parts = [part for stretch in LIST.split(text) for part in split_at_braces(stretch)]
    if not all(map(is_complete_list, parts)):
        parts = [part for stretch in LIST.split(text) for part in split_events(stretch)]
    if len(parts) > 1:
        columns.repaired += 1
        for part in parts:
            if not take_events(part, columns):
                _repair_events(part, columns)
    elif any(take_events(event, columns) for event in (escape_quotes(text), *salvage(text))):
        columns.repaired += 1
    else:
        columns.dropped += 1
