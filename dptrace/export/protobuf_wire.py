"""Protobuf's wire format, as far as a trace needs it: times by the thousand, and packets with a time put in."""

from __future__ import annotations

import numpy as np

from dptrace.core.intervals import Int64

__all__ = ["packet_head", "times", "varint"]

_PACKET = b"\x0a"
"""Trace.packet, number 1, which has a length."""
_TIMESTAMP = b"\x40"
"""TracePacket.timestamp, number 8, which is a number."""


def varint(number: int) -> bytes:
    """Write a number of 0 or more, seven bits to a byte, the lowest first.

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
    """Write times of 0 or more as varints that are all as long as the longest of them.

    A varint may be longer than it needs to be (the digits on top are zeros), and with one length for all the lengths
    of the packets that hold them are known without looking.
    """
    width = len(varint(int(values.max(initial=0))))
    digits = np.empty((len(values), width), np.uint8)
    for place in range(width):
        digits[:, place] = values >> 7 * place & 0x7F
    digits[:, : width - 1] |= 0x80
    text = digits.tobytes()
    return [text[first : first + width] for first in range(0, len(text), width)]


def packet_head(rest: bytes, width: int) -> bytes:
    """Give what stands before the time, of *width* bytes, of a packet whose other fields are *rest*."""
    return _PACKET + varint(len(_TIMESTAMP) + width + len(rest)) + _TIMESTAMP
