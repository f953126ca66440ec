"""The packets of a Perfetto file, read chunk by chunk."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from dptrace.readers.stream import ChunkedStream

_TAG = 0x0A
"""Tag of ``Trace.packet``, the only field of a trace: number 1, length-delimited."""
_MAX_PACKET = 256 << 20
"""Maximum bytes of a packet; those of traces have hundreds."""
_INFLATED = 64 << 20
"""Maximum decompressed bytes of a packet of packets; Perfetto compresses some hundred kilobytes at a time."""
_LOOKED_AT = 4
"""Packets at the start of a file that tell its format."""
_BLANK = 16
"""So many bytes of white space begin no packet: JSON may have any number of them."""


def begins_with_packets(start: bytes) -> bool:
    """Return whether a file is Perfetto's and not JSON, which may start with the same byte (a newline)."""
    if start[:_BLANK].isspace() and len(start) >= _BLANK:
        return False
    position = 0
    for seen in range(_LOOKED_AT):
        frame = _frame(start, position) if start[position : position + 1] == b"\n" else None
        if frame is None or frame[1] - frame[0] > _MAX_PACKET:
            return False
        position = frame[1]
        if position >= len(start):
            return position > 2 and (seen > 0 or start.lstrip()[:1] not in (b"{", b"["))
    return True


def _frame(data: bytes, position: int) -> tuple[int, int] | None:
    """Return where the packet at *position* starts and ends, after its tag and length; None if these are truncated."""
    size, shift = 0, 0
    for place in range(position + 1, min(position + 11, len(data))):
        byte = data[place]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return place + 1, place + 1 + size
        shift += 7
    return None


class Packets:
    """The packets of a trace, decoded in batches, and the damage found."""

    def __init__(self, start: bytes, chunks: ChunkedStream) -> None:
        from google.protobuf.message import DecodeError
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2

        self._trace: Any = perfetto_trace_pb2.Trace
        self._failure = DecodeError
        self._data, self._chunks = start, chunks
        self.lost = 0
        """Packets that could not be decoded."""
        self.damage = ""
        """Why the packets stop early."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            ends = self._whole()
            if ends:
                yield from self._decoded(self._data, ends)
                self._data = self._data[ends[-1] :]
            if self.damage or self._chunks.ended:
                break
            self._data += self._chunks.read_chunk()
        self.damage = self.damage or self._chunks.damage or ("it ends in the middle" if self._data else "")

    def _whole(self) -> list[int]:
        """Return where each complete packet in the buffer ends."""
        data, position, ends = self._data, 0, list[int]()
        while position < len(data):
            frame = _frame(data, position)
            if data[position] != _TAG or (frame and frame[1] - frame[0] > _MAX_PACKET):
                self.damage = "the next bytes are not a packet"
                break
            if frame is None or frame[1] > len(data):
                break
            position = frame[1]
            ends.append(position)
        return ends

    def _decoded(self, data: bytes, ends: list[int]) -> Iterator[Any]:
        try:
            found = self._trace.FromString(data[: ends[-1]]).packet
        except self._failure:
            if len(ends) == 1:
                self.lost += 1
                return
            middle = len(ends) // 2
            cut = ends[middle - 1]
            yield from self._decoded(data[:cut], ends[:middle])
            yield from self._decoded(data[cut:], [end - cut for end in ends[middle:]])
            return
        for packet in found:
            if packet.HasField("compressed_packets"):
                yield from self._inflated(packet.compressed_packets)
            else:
                yield packet

    def _inflated(self, data: bytes) -> Iterator[Any]:
        try:
            decompressor = zlib.decompressobj()
            plain = decompressor.decompress(data, _INFLATED)
            if decompressor.unconsumed_tail:
                raise zlib.error
            found = self._trace.FromString(plain).packet
        except (zlib.error, self._failure):
            self.lost += 1
            return
        # One level only: Perfetto does not compress compressed packets.
        yield from found
