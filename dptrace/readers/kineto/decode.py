"""Decode the events of a piece of a trace file; repair or drop damaged ones, and count them."""

from __future__ import annotations

import re
from contextlib import suppress

from msgspec.structs import replace

from dptrace.readers.kineto.columns.events import DAMAGE, EventSink
from dptrace.readers.kineto.envelope import (
    DocumentEnd,
    Metadata,
    decode_document,
    end_of,
    is_closed_list,
    recover_metadata,
)
from dptrace.readers.kineto.structure import (
    BLANK,
    LIST,
    State,
    closing_bracket,
    count_brackets,
    find_list,
    is_list,
    values_of,
)
from dptrace.readers.stream import EventPiece

__all__ = ["PieceDecoder", "decode_whole"]


class PieceDecoder:
    """Decodes the pieces of a file one after the other, in the order of the file; repairs or drops damaged events.

    A piece that is not whole events may be damaged, hold the end of a list of events and the beginning of the next one,
    or end within an event whose arguments hold objects that look like events. It is held until the next one shows
    which::

        {"ph": 1, "a": [{"ph": 2},      held
        {"ph": 3}]}, {"ph": 4}          together they are whole events
    """

    def __init__(self, columns: EventSink) -> None:
        self._columns = columns
        self._held: list[bytes] = []
        self._ends_open = False
        """Whether what is held ends within an event, or behind the list of events."""
        self._between = b""
        self._head = bytearray()
        """The document up to the list of events that is read."""
        self._metadata: Metadata | None = None
        """That of the first document, if it has ended."""
        self._lists = 1

    def add(self, piece: EventPiece) -> None:
        """Decode a piece that is not the last."""
        text = piece.text
        self._head = self._head or bytearray(piece.head)
        if self._held and not self.waits and is_list(text):
            self.flush()
        if not self._held and decode_whole(text, piece.between, self._columns):
            return
        self._between = piece.between
        self._held.append(text)
        joined = b",".join(self._held)
        text = self._after_lists(joined)
        if decode_whole(text, piece.between, self._columns):
            self._held.clear()
            return
        found = count_brackets(text)
        is_behind_list = found.closed >= 0 and is_list(text[: found.closed])
        self._ends_open = found.is_within_event or is_behind_list
        most = _MOST_HELD_BEHIND_LIST if is_behind_list else _MOST_HELD
        if found.last_end >= 0 and decode_whole(text[: found.last_end + 1], piece.between, self._columns):
            self._held = [text[found.last_end + 1 :].lstrip(BLANK)]
        elif len(text) < len(joined):
            self._held = [text]
        elif len(self._held) >= most:
            self.flush()

    @property
    def waits(self) -> bool:
        """Whether the next piece, although it may be whole events, belongs to what is held."""
        return bool(self._held) and self._ends_open

    def flush(self) -> None:
        """Decode what is held as damaged events."""
        if self._held:
            text = b",".join(self._held)
            self._held.clear()
            add_stretch(text, self._between, self._columns)

    def _after_lists(self, text: bytes) -> bytes:
        """Decode the lists that another list of events follows, in this document or in the next; return the rest."""
        at = 0
        while (end := count_brackets(text, at).closed) >= 0:
            second = find_list(text, end + 1, inside=self._head != b"[")
            if not isinstance(second, int) or not decode_whole(text[at:end], self._between, self._columns):
                break
            self._begin_list(text[end:second])
            at = second
        return text[at:]

    def _begin_list(self, between: bytes) -> None:
        """Note that another list begins behind the text *between*, which begins with the end of the one before."""
        self._lists += 1
        closed = 1 if self._head == b"[" else closing_bracket(between[:-1], 1, 1)
        if closed < 0:
            self._head += between
            return
        if self._metadata is None:
            head, tail = bytes(self._head), between[:closed]
            self._metadata = decode_document(head, tail) or recover_metadata(head + tail)
        self._head = bytearray(between[closed:].lstrip(BLANK + b"\0"))

    def finish(self, piece: EventPiece) -> tuple[Metadata, str]:
        """Decode the last piece and the rest of the document; return the metadata, and why the text ends too early."""
        if not piece.head:
            self.flush()
            return self._finish_bare(piece)
        self._head, self._between = self._head or bytearray(piece.head), piece.between
        joined = b",".join([*self._held, piece.text])
        text = self._after_lists(joined)
        if self._held and len(text) == len(joined) and not is_closed_list(bytes(self._head), text):
            self.flush()
            text = piece.text
        self._held.clear()
        for _ in range(_MOST_DAMAGED_LISTS):
            last = text.rfind(piece.between) + 1 if piece.between else 0
            sound = not last or take_events(text[:last].strip(BLANK), self._columns)
            found = end_of(bytes(self._head), text, last, sound)
            if found is None:
                break
            add_stretch(text[last if sound else 0 : found.end], piece.between, self._columns)
            self._metadata = self._metadata or found.metadata
            if (second := _next_list(text, found, self._head == b"[")) is None:
                return self._whole(self._metadata, text[found.closed :], piece.damage), ""
            self._lists += 1
            self._head = bytearray(b'{"traceEvents":[')
            text, last, sound = self._after_lists(text[second:]), 0, True
        if not sound:
            add_stretch(text[:last], piece.between, self._columns)
        rest = text[last:].lstrip(BLANK)
        take_events(rest[: rest.rfind(b"}") + 1], self._columns)
        metadata = self._metadata or decode_document(bytes(self._head), b"]}") or recover_metadata(bytes(self._head))
        return self._whole(metadata), piece.damage or "it ends in the middle"

    def _whole(self, metadata: Metadata, rest: bytes = b"", damage: str = "") -> Metadata:
        """Add what is said of the whole file to the metadata of its first document."""
        sentences = [f"Holds {self._lists:,} lists of events; they were read as one."] if self._lists > 1 else []
        if damage:
            sentences.append(f"After the end of the document {damage}; any part of the file may be damaged.")
        if rest := rest.strip(BLANK + b"\0"):
            sentences.append(f"{len(rest):,} bytes after the end of the document were not read.")
        return replace(metadata, damage=(*sentences, *metadata.damage))

    def _finish_bare(self, piece: EventPiece) -> tuple[Metadata, str]:
        """Decode the end of a file of bare events, one per line."""
        from dptrace.readers.kineto.repair import recover_metadata_fields

        text = piece.text.strip(BLANK)
        add_stretch(text, piece.between, self._columns)
        base, rank_info = recover_metadata_fields(text[text.rfind(piece.between) + 1 :] if piece.between else text)
        damage = "Is not a JSON document but a sequence of bare events; they were read."
        why = piece.damage or ("" if text.endswith((b"}", b"]")) else "it ends in the middle")
        return Metadata(base, rank_info, None, (damage,)), why


def _next_list(text: bytes, found: DocumentEnd, is_bare: bool) -> int | None:
    """Return where another list of events begins after a damaged one; None without one."""
    second = find_list(text, found.end + 1, inside=not is_bare)
    if second in (State.MORE, State.BROKEN):
        match = LIST.search(text, found.end)
        return match.end() if match else None
    return second if isinstance(second, int) else None


_MOST_DAMAGED_LISTS = 10
"""Maximum lists of events whose end is searched where damage hides the structure, which takes a look at all text."""
_MOST_HELD = 8
"""Maximum pieces that are held: damage may hide the structure of all text behind it."""
_MOST_HELD_BEHIND_LIST = 64
"""The same where they are the rest of a document."""


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
    if not all(map(is_list, parts)):
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
