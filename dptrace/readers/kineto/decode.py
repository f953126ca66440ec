"""Decode the events of a piece of a trace file; repair or drop damaged ones, and count them."""

from __future__ import annotations

from dptrace.readers.kineto.columns import DAMAGE, EventSink
from dptrace.readers.kineto.envelope import BLANK, is_complete_list
from dptrace.readers.kineto.json_stream import LIST
from dptrace.readers.kineto.repair import clean, escape_quotes, salvage, split_at_braces, split_events

__all__ = ["add_piece", "add_stretch", "take_events"]


def add_piece(text: bytes, between: bytes, columns: EventSink) -> None:
    """Decode the events of a piece; repair or drop damaged ones, and count them."""
    try:
        events = text if b"," in between else _with_commas(text, between)
        columns.decode(b"".join((b"[", events, b"]")))  # one copy, where two additions would copy twice
        return
    except DAMAGE:
        parts = text.split(between) if between else [text]
    opening, last = between[between.rfind(b"{") :] if between else b"", len(parts) - 1
    torn = [(opening if i else b"") + part + (b"}" if i < last else b"") for i, part in enumerate(parts)]
    _add_events(torn, columns)


def _with_commas(text: bytes, between: bytes) -> bytes:
    return text.replace(between, b"}," + between[1:]) if between else text


def _add_events(events: list[bytes], columns: EventSink) -> None:
    """Decode damaged events by halves, so that one in a million costs little."""
    if len(events) == 1:
        _repair_events(events[0], columns)
        return
    middle = len(events) // 2
    for half in (events[:middle], events[middle:]):
        if not take_events(b",".join(half), columns):
            _add_events(half, columns)


def take_events(events: bytes, columns: EventSink) -> bool:
    """Decode events separated by commas; return False, without adding any, if they are damaged."""
    try:
        columns.decode(b"[" + events + b"]")
    except DAMAGE:
        return False
    return True


def _repair_events(text: bytes, columns: EventSink) -> None:
    """Repair a damaged event, split it into several where they run together, or salvage what remains of it."""
    text = text.strip(BLANK)
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


def add_stretch(text: bytes, between: bytes, columns: EventSink) -> None:
    """Decode events as :func:`add_piece` does, after removing what surrounds them."""
    if text := text.strip(BLANK):
        add_piece(text, between, columns)
