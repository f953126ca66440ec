"""Protobuf reads the hand-encoded packets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.export.perfetto import packet_head, times, varint

moments = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20)


def read(data: bytes) -> int:
    """Read a varint of any length."""
    assert all(byte & 0x80 for byte in data[:-1])
    assert not data[-1] & 0x80
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data))


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**32, 2**63 - 1])
def test_a_varint_is_as_short_as_can_be(number: int) -> None:
    """A number comes back from its bytes, and takes one byte per seven bits."""
    assert number == read(varint(number))
    assert max(1, -(-number.bit_length() // 7)) == len(varint(number))


@given(moments)
def test_times_are_of_one_length_and_come_back(numbers: list[int]) -> None:
    """Each time takes as many bytes as the longest needs."""
    written = times(np.array(numbers, np.int64))

    assert numbers == list(map(read, written))
    assert {len(varint(max(numbers)))} == set(map(len, written))


def test_nothing_gives_nothing() -> None:
    """No times, no bytes."""
    assert [] == times(np.empty(0, np.int64))


@given(moments)
def test_packets_with_times_put_in_are_read_by_protobuf(numbers: list[int]) -> None:
    """A packet assembled from head, time and rest is read with its fields and its time."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    rest = proto.TracePacket(trusted_packet_sequence_id=7).SerializeToString()
    written = times(np.array(numbers, np.int64))
    data = b"".join(packet_head(rest, len(time)) + time + rest for time in written)

    packets = proto.Trace.FromString(data).packet
    assert [(number, 7) for number in numbers] == [(p.timestamp, p.trusted_packet_sequence_id) for p in packets]
