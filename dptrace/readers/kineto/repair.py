"""What damaged JSON says without a doubt: the text of an event that needs no guess, and the clock and rank of a file.

Kineto writes JSON without an encoder, so that names from elsewhere break it: control characters and bytes that are not
UTF-8 (pytorch#136180, #121219), backslashes (pytorch#98432), ``inf`` and ``nan`` in place of numbers. An event with
unescaped quotation marks (pytorch/kineto#1459, #1508, pytorch#113001) can be read in several ways: it is left out and
counted.
"""

from __future__ import annotations

import re

import msgspec

from dptrace.readers.kineto.event_schema import DAMAGE
from dptrace.readers.kineto.json_stream import LIST

_CONTROL = re.compile(rb"[\x00-\x1f]")
"""Raw control characters, which JSON strings must not hold; between strings they are white space."""
_SURROGATE = re.compile(r"\\ud[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..)\\ud[c-f]..", re.IGNORECASE)
"""Unpaired surrogates."""
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_NO_NUMBER = re.compile(r'("\s*:\s*|[\[,]\s*)[-+]?(?:nan|inf(?:inity)?)(?=\s*[,}\]])', re.IGNORECASE)
_MAX_BYTES = 1 << 20
"""Longest event that is repaired; Kineto's have some thousand bytes."""
_SEAM = re.compile(rb'(?<=\})[^{}]{0,999}(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id)")')
"""Where two events meet that only a comma should separate."""
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_METADATA = tuple(re.compile(rf'"({key})"\s*:\s*(\d{{1,19}})'.encode()) for key in ("rank", "world_size"))


_HEADER = re.compile(rb'\{\s{0,99}"schemaVersion"\s{0,9}:\s{0,9}\d')
"""The beginning of a document of Kineto's."""
_SIMPLE = re.compile(rb'"(?:ph|cat|name|pid|tid|ts|dur|id|args|device|stream|correlation|[A-Z][\w ]*)"\s*:\Z')
"""A key of an event of Kineto's whose value is no document."""


def header_within(text: bytes, rank: int | None) -> bool:
    """Return whether a document of Kineto's with events begins among the events of another one's damaged text.

    Two processes wrote such a file. Files of one rank that were joined, and a document that is an argument, are none.

    Args:
        rank: the rank of the document that the text is of.
    """
    for found in _HEADER.finditer(text):
        if (events := LIST.search(text, found.end())) is None:
            continue
        before = text[max(found.start() - 999, 0) : found.start()].rstrip(b" \t\r\n\0")
        own = recover_metadata_fields(text[found.start() : events.start()])[1].get("rank")
        if before.endswith(b":"):
            torn = _SIMPLE.search(before) is not None
        elif not before or before.endswith(b"}"):
            torn = None not in (own, rank) and own != rank
        else:
            torn = not before.endswith(b"[")
        if torn:
            return True
    return False


def clean(event: bytes) -> bytes:
    """Replace characters that no string may hold, and invalid numbers."""
    if len(event) > _MAX_BYTES:
        return event
    text = _SURROGATE.sub(r"\\ufffd", _CONTROL.sub(b" ", event).decode("utf-8", "replace"))
    return _NO_NUMBER.sub(r"\1null", _ESCAPE.sub(_escaped, text)).encode()


def _escaped(found: re.Match[str]) -> str:
    return found.group() if len(found.group()) > 1 else r"\\"


def last_values(event: bytes) -> bytes:
    """Drop all but the last value of a key that an event has several times, as JSON's readers do.

    Text that is not one event stays as it is.
    """
    try:
        fields = _FIELDS_OF_EVENT.decode(event)
    except DAMAGE:
        return event
    return b"{%s}" % b",".join(b"%s:%s" % (msgspec.json.encode(key), bytes(value)) for key, value in fields.items())


_FIELDS_OF_EVENT: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


def split_events(text: bytes) -> list[bytes]:
    """Split a text where one event ends and another begins, and drop what is between them."""
    return _SEAM.split(text)


def recover_metadata_fields(around: bytes) -> tuple[int | None, dict[str, int]]:
    """Find the clock's base, the rank and the world size in metadata that can't be decoded."""
    base = _BASE.search(around)
    signs = (sign.search(around) for sign in _METADATA)
    rank_info = {found[1].decode(): int(found[2]) for found in signs if found}
    return int(base[1]) if base else None, rank_info
