"""The document around a file's list of events, and where the list and the document end."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dptrace.readers.kineto.columns.events import DAMAGE
from dptrace.readers.kineto.structure import closing_bracket, is_list

__all__ = [
    "DocumentEnd",
    "Metadata",
    "decode_document",
    "end_of",
    "is_closed_list",
    "recover_metadata",
]

_CLOSING_BYTES = 64 << 20
"""Maximum bytes decoded to find the closing bracket of the list; Kineto's files need few tries on little text."""
_TRY = 1000
"""Cost of a try besides its text, in bytes decoded."""


class Metadata(msgspec.Struct, frozen=True):
    """The document's other keys; of any type, since many tools write such files."""

    base: Any = None
    """Base of the clock in ns."""
    distributed: Any = None
    devices: Any = None
    damage: tuple[str, ...] = ()
    """What is damaged in the document around its events, a sentence each."""
    gloo_threads: Any = None
    """Ids of gloo's threads in order of creation, as dptrace's recorder lists them."""
    host_name: Any = None


class DocumentEnd(msgspec.Struct, frozen=True):
    """Where a document and its list of events end."""

    end: int
    """Position of the bracket that closes the list."""
    closed: int
    """Position after the end of the document."""
    metadata: Metadata


class _Document(msgspec.Struct, frozen=True):
    base: Any = msgspec.field(default=None, name="baseTimeNanoseconds")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    devices_2021: Any = msgspec.field(default=None, name="computeProperties")
    gloo_threads: Any = None
    host_name: Any = None


def decode_document(head: bytes, tail: bytes) -> Metadata | None:
    """Decode the document around an emptied list of events; return None if it is not a document."""
    text = head + tail
    try:
        text.decode()  # the decoder does not look at keys that it skips: a damaged one hides its value
        if head == b"[":
            return Metadata() if msgspec.json.decode(text) == [] else None
        document = msgspec.json.decode(text, type=_Document)
    except DAMAGE:
        return None
    return Metadata(
        document.base,
        document.distributed,
        document.devices or document.devices_2021,
        gloo_threads=document.gloo_threads,
        host_name=document.host_name,
    )


def recover_metadata(around: bytes) -> Metadata:
    """Return the metadata that can be found in a document that can't be decoded."""
    from dptrace.readers.kineto.repair import recover_metadata_fields

    base, document = recover_metadata_fields(around)
    rest = "only the clock's base and the rank were read" if base is not None or document else "it was not read"
    return Metadata(base, document, None, (f"The document around the events can't be decoded; {rest}.",))


def end_of(head: bytes, text: bytes, last: int, sound: bool) -> DocumentEnd | None:
    """Find the bracket that closes the list of events; return None if the document is not closed.

    Args:
        last: where the last event starts, judged by the separator of events.
        sound: whether the text before it is known to be whole events.
    """
    found = _by_trial(head, text, last)
    if sound and found:
        return found
    # The last separator may have been within an event, or in the text after the list.
    counted = None if sound else _by_brackets(head, text, 0)
    if counted and not counted.metadata.damage and (counted.end < last or is_list(text[: counted.end])):
        return counted
    if found:
        return found
    near = _by_brackets(head, text, last)
    return near if near and not near.metadata.damage else _by_keys(head, text, last) or near or counted


def _by_trial(head: bytes, text: bytes, last: int) -> DocumentEnd | None:
    """Return the first bracket with whole events before it and a whole document around it.

    A bracket within a truncated event can fulfil only one of the two.
    """
    end, room = last - 1, _CLOSING_BYTES
    while room > 0 and (end := text.find(b"]", end + 1)) >= 0:
        metadata = decode_document(head, text[end:])
        if metadata is not None and is_list(text[last:end]):
            return DocumentEnd(end, len(text), metadata)
        room -= len(text) - last + _TRY
    return None


def _by_brackets(head: bytes, text: bytes, start: int) -> DocumentEnd | None:
    """Count brackets, which finds the ends of a list and a document that can't be decoded."""
    end = closing_bracket(text, 1, start) - 1
    if end < start:
        return None
    closed = end + 1 if head == b"[" else closing_bracket(text, 1, end + 1)
    if closed < 0:
        return None
    return DocumentEnd(
        end, closed, decode_document(head, text[end:closed]) or recover_metadata(head + text[end:closed])
    )


def _by_keys(head: bytes, text: bytes, last: int) -> DocumentEnd | None:
    """Return the bracket that Kineto's own keys follow: the last event is damaged, not the end of the file."""
    places = [found.start() for found in _CLOSED.finditer(text, last)]
    for end in places:
        if (metadata := decode_document(head, text[end:])) is not None:
            return DocumentEnd(end, len(text), metadata)
    if places and text.rstrip().endswith(b"}"):
        return DocumentEnd(places[0], len(text), recover_metadata(head + text[places[0] :]))
    return None


_CLOSED = re.compile(
    rb'\](?=\s{0,99},\s{0,99}"(?:traceName|displayTimeUnit|baseTimeNanoseconds|distributedInfo|deviceProperties)")'
)


def is_closed_list(head: bytes, text: bytes) -> bool:
    """Return whether a text is the whole events of a list and a sound document behind it."""
    counted = _by_brackets(head, text, 0)
    return counted is not None and not counted.metadata.damage and is_list(text[: counted.end])
