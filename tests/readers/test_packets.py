"""Packets of Perfetto's format."""

from __future__ import annotations

import zlib

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from dptrace.readers.packets import Packets, begins_with_packets


class Chunks:
    """Bytes in chunks."""

    def __init__(self, data: bytes, size: int, damage: str = "") -> None:
        self.parts = [data[at : at + size] for at in range(0, len(data), size)]
        self.damage = damage

    @property
    def ended(self) -> bool:
        return not self.parts

    def read_chunk(self) -> bytes:
        return self.parts.pop(0) if self.parts else b""


def trace(count: int = 50) -> bytes:
    return bytes(proto.Trace(packet=[proto.TracePacket(timestamp=k) for k in range(count)]).SerializeToString())


def read(data: bytes, size: int = 1 << 20, damage: str = "") -> tuple[list[int], Packets]:
    packets = Packets(b"", Chunks(data, size, damage))  # type: ignore[arg-type]
    return [packet.timestamp for packet in packets], packets


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_packets_are_whole_however_the_bytes_come(size: int) -> None:
    """One byte at a time or all at once."""
    times, packets = read(trace(), size)

    assert (list(range(50)), 0, "") == (times, packets.lost, packets.damage)


def test_a_cut_and_foreign_bytes_end_the_packets() -> None:
    """Earlier packets are kept, and the reason is reported; that of the bytes has precedence."""
    cut, packets = read(trace()[:-1])
    assert (49, "it ends in the middle") == (len(cut), packets.damage)
    foreign, packets = read(trace() + b"}")
    assert (50, True) == (len(foreign), "not a packet" in packets.damage)
    assert "gone" == read(trace()[:-1], damage="gone")[1].damage


@pytest.mark.heavy
def test_a_packet_that_is_damaged_inside_is_lost_alone() -> None:
    """Its neighbours are kept, and so are those compressed into one packet."""
    inner = proto.TracePacket(compressed_packets=zlib.compress(trace(3))).SerializeToString()
    bomb = proto.TracePacket(compressed_packets=zlib.compress(bytes(100 << 20))).SerializeToString()
    broken = b"\x0a\x02\x40\xff"  # a timestamp whose number does not end
    parts = [b"\x0a" + _length(len(part)) + part for part in (inner, bomb)]

    times, packets = read(trace(5) + broken + parts[0] + trace(5) + parts[1])

    assert ([0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4], 2) == (times, packets.lost)


def _length(size: int) -> bytes:
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*out, size])


@pytest.mark.parametrize(
    ("start", "packets"),
    [
        (trace(), True),
        (trace()[:100], True),
        (b"\n" + b"{" + b"\x40" * 123 + trace(), True),
        (b'\n{"traceEvents":[]}', False),
        (b"\n{" + b" " * 200, False),
        (b"\n\n\n{}", False),
        (b"{}", False),
        (b"", False),
        (b"\n", False),
    ],
)
def test_packets_are_distinguished_from_json(start: bytes, packets: bool) -> None:
    """JSON may start with a newline, which is also the first byte of a packet."""
    assert packets == begins_with_packets(start)


@pytest.mark.parametrize("blank", [b"\n" * 20, b"\n\n \t" * 5000, b"\n" + b"\r\n" * 30])
def test_white_space_of_any_length_begins_no_packet(blank: bytes) -> None:
    """A newline is the tag of a packet and the length of one, but no packet is white space."""
    assert not begins_with_packets(blank + b'{"traceEvents": []}')
