"""Protobuf's wire format, as far as traces need it: many times at once, and packets with a time inserted."""

from __future__ import annotations

import numpy as np

from dptrace.core.intervals import Int64

__all__ = ["packet_head", "times", "varint"]

_PACKET = b"\x0a"
"""Tag of Trace.packet: field 1, length-delimited."""
_TIMESTAMP = b"\x40"
"""Tag of TracePacket.timestamp: field 8, varint."""


def varint(number: int) -> bytes:
    """Encode a number of 0 or more, seven bits per byte, the lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def times(values: Int64) -> list[bytes]:
    """Encode times of 0 or more as varints, all as long as the longest one.

    A varint may be longer than necessary (its high digits are zeros). With one length for all, the lengths of the
    packets that contain them are known in advance.
    """
    width = len(varint(int(values.max(initial=0))))
    digits = np.empty((len(values), width), np.uint8)
    for place in range(width):
        digits[:, place] = values >> 7 * place & 0x7F
    digits[:, : width - 1] |= 0x80
    text = digits.tobytes()
    return [text[first : first + width] for first in range(0, len(text), width)]


def packet_head(rest: bytes, width: int) -> bytes:
    """Return the bytes before a packet's time of *width* bytes; *rest* are its other fields."""
    return _PACKET + varint(len(_TIMESTAMP) + width + len(rest)) + _TIMESTAMP
