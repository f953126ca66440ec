"""Repair of damaged JSON: the text of one event, and the metadata of a document that is not valid JSON.

Kineto writes JSON without an encoder, so that names from elsewhere break it: unescaped quotation marks and backslashes
(pytorch/kineto#1459, #1508, pytorch#98432, #113001), control characters and bytes that are not UTF-8 (pytorch#136180,
#121219), ``inf`` and ``nan`` in place of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from dptrace.readers.kineto.event_schema import DAMAGE
from dptrace.readers.kineto.json_stream import closing_bracket

__all__ = [
    "clean",
    "escape_quotes",
    "last_values",
    "recover_metadata_fields",
    "salvage",
    "split_at_braces",
    "split_events",
]

_CONTROL = re.compile(rb"[\x00-\x1f]")
"""Raw control characters, which JSON strings must not hold; between strings they are white space."""
_SURROGATE = re.compile(r"\\ud[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..)\\ud[c-f]..", re.IGNORECASE)
"""Unpaired surrogates."""
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_NO_NUMBER = re.compile(r'("\s*:\s*|[\[,]\s*)[-+]?(?:nan|inf(?:inity)?)(?=\s*[,}\]])', re.IGNORECASE)

_LONGEST = 1 << 20
"""Maximum bytes of an event that is repaired; Kineto's have some thousand."""

_KEYS = "ph|cat|name|pid|tid|ts|dur|args|id|bp|s|sf|cname|tts|tdur"
"""Keys of an event itself; its ``args`` may have any."""
# Bounded, so that a long run of white space is not scanned again from each of its positions.
_AFTER_FIELD = re.compile(rf'\s{{0,99}}(?:,\s{{0,99}}"(?:{_KEYS})"\s{{0,99}}:|\}}[\s,]{{0,99}}$)')
_AFTER_ARGUMENT = re.compile(
    r'\s{0,99}(?:,\s{0,99}"[^"]{1,80}"\s{0,99}:|[}\]][}\]\s]{0,99}(?:,\s{0,99}["\[{\d-]|,?\s{0,99}$))'
)
_AFTER_ELEMENT = re.compile(r'\s{0,99}(?:,\s{0,99}["\[{\d-]|\][}\]\s]{0,99}(?:,\s{0,99}["\[{\d-]|,?\s{0,99}$))')
_AFTER_KEY = re.compile(r"\s*:")

_SEAM = re.compile(
    rb'(?<=\})(?:[\s,\w.+\[\]{-]|"[^"{}]{0,9999}")*(?:"[\s,]{0,99})?(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id)")'
)
"""Where two events meet that only a comma should separate."""

_FIELDS = tuple(
    (
        key,
        re.compile(
            rf'"{key}"\s*:\s*(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?=\s*[,}}\]])|"(?:[^"\\]|\\.)*?"(?=\s*[,}}]))'.encode()
        ),
    )
    for key in ("ph", "cat", "pid", "tid", "ts", "dur")
)
_NAME = re.compile(rb'"name"\s*:\s*"(.{0,2000}?)"\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|id)"\s*:', re.DOTALL)
_ARGUMENTS = tuple(
    (key, re.compile(rf'"{key}"\s*:\s*(-?\d+(?=\s*[,}}\]])|"[^"\\]*")'.encode()))
    for key in (
        *("correlation", "device", "stream", "Collective name", "In msg nelems", "Out msg nelems"),
        *("Group size", "dtype", "Process Group Name", "Seq"),
    )
)
_METADATA = tuple(re.compile(rf'"({key})"\s*:\s*(\d{{1,19}})'.encode()) for key in ("rank", "world_size"))
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')


def clean(event: bytes) -> bytes:
    """Repair what is unambiguous: characters that no string may hold, and invalid numbers."""
    if len(event) > _LONGEST:
        return event
    text = _SURROGATE.sub(r"\\ufffd", _CONTROL.sub(b" ", event).decode("utf-8", "replace"))
    return _NO_NUMBER.sub(r"\1null", _ESCAPE.sub(_escaped, text)).encode()


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


def escape_quotes(event: bytes) -> bytes:
    """Escape the quotation marks inside the strings of one event; it would merge several events into one.

    These are the marks that are not followed by what may follow a string.
    """
    return _quoted(clean(event).decode()).encode() if len(event) <= _LONGEST else event


def salvage(event: bytes) -> Iterator[bytes]:
    """Yield what can be salvaged of an event that can't be repaired, most complete first."""
    end = closing_bracket(event, 0)
    if 0 < end < len(event):
        yield event[:end]  # what follows its brace is not part of the event
    if len(event) <= _LONGEST and (essence := _essence(_CONTROL.sub(b" ", event))) is not None:
        yield essence


def split_at_braces(text: bytes) -> list[bytes]:
    """Split a text where braces close one event and open another, and drop what is between them.

    Correct for whole events; damaged ones may have surplus braces or quotation marks.
    """
    parts, end = [], 0
    while (begin := text.find(b"{", end)) >= 0:
        end = closing_bracket(text, 0, begin)
        if end < 0:
            parts.append(text[begin:])
            break
        parts.append(text[begin:end])
    return parts


def split_events(text: bytes) -> list[bytes]:
    """Split a text before each start of an event that follows the end of another."""
    return _SEAM.split(text)


def _escaped(found: re.Match[str]) -> str:
    return found.group() if len(found.group()) > 1 else r"\\"


def _quoted(text: str) -> str:
    parts: list[str] = []
    containers: list[str] = []
    inside, expects, before = False, _AFTER_KEY, ""
    previous = 0
    for mark in re.finditer(r'\\.|["{}\[\],:]', text):
        sign, at = mark.group(), mark.start()
        if inside:
            if sign == '"':
                if expects.match(text, at + 1):
                    inside = False
                else:
                    parts += [text[previous:at], "\\"]
                    previous = at
        elif sign == '"':
            inside, expects = True, _follows(containers, before)
        else:
            before = sign
            if sign in "{[":
                containers.append(sign)
            elif sign in "}]" and containers:
                containers.pop()
    return "".join((*parts, text[previous:]))


def _follows(containers: list[str], before: str) -> re.Pattern[str]:
    """Return the pattern of what may follow a string that starts here."""
    if containers[-1:] == ["["]:
        return _AFTER_ELEMENT
    if before != ":":
        return _AFTER_KEY
    return _AFTER_FIELD if len(containers) == 1 else _AFTER_ARGUMENT


def _essence(event: bytes) -> bytes | None:
    """Rebuild an event from the fields that can be recognized; return None without a start time."""
    around, _, inside = event.partition(b'"args"')
    fields = [b'"%s":%s' % (key.encode(), found[1]) for key, sign in _FIELDS if (found := sign.search(around))]
    if not any(field.startswith(b'"ts"') for field in fields):
        return None
    if found := _NAME.search(event):
        name = found[1].decode("utf-8", "replace").replace("\\", "/").replace('"', "'")
        fields.append(f'"name":"{name}"'.encode())
    arguments = [b'"%s":%s' % (key.encode(), found[1]) for key, sign in _ARGUMENTS if (found := sign.search(inside))]
    return b'{%s,"args":{%s}}' % (b",".join(fields), b",".join(arguments))


def recover_metadata_fields(around: bytes) -> tuple[int | None, dict[str, int]]:
    """Find the clock's base, the rank and the world size in metadata that can't be decoded."""
    base = _BASE.search(around)
    rank_info = {found[1].decode(): int(found[2]) for sign in _METADATA if (found := sign.search(around))}
    return int(base[1]) if base else None, rank_info
