"""Slices, threads and times from Perfetto's packets."""

from __future__ import annotations

from typing import Any

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from dptrace.readers.perfetto.slices import PerfettoClocks, Slices, TrackDescriptors


def pairs(moments: str) -> tuple[list[tuple[str, int, int]], int]:
    """Pair the moments of a text: ``a0 b1 /2 /3`` begins a at 0 and b at 1, and ends two slices at 2 and 3."""
    slices = Slices()
    found = []
    for moment in moments.split():
        track = 2 if moment[0].isupper() or moment[0] == "!" else 1
        if moment[0] in "/!":
            slices.end(int(moment[1:]), track)
        else:
            found += slices.begin(int(moment[1:]), track, moment[0].encode())
    found += slices.flush()
    return sorted((body.decode(), start, end) for body, start, end in found), slices.unended


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        ("a0 /2 b2 /3", [("a", 0, 2), ("b", 2, 3)]),
        ("a0 b1 /2 /3", [("a", 0, 3), ("b", 1, 2)]),
        ("a0 b1 /2 c3 /4 /5", [("a", 0, 5), ("b", 1, 2), ("c", 3, 4)]),
        ("a0 A1 /2 !3", [("A", 1, 3), ("a", 0, 2)]),
        # In columns: the second block's ends go back in time.
        ("a0 b4 c9 /3 /9 /10", [("a", 0, 3), ("b", 4, 9), ("c", 9, 10)]),
        ("a0 b1 c5 /4 /2 /6", [("a", 0, 4), ("b", 1, 2), ("c", 5, 6)]),
        # Neither: out of order, and as many ends as begins on no track.
        ("A5 a0 /1 c2 /3 !6", [("A", 5, 6), ("a", 0, 1), ("c", 2, 3)]),
    ],
)
def test_ends_find_their_begins(moments: str, expected: list[tuple[str, int, int]]) -> None:
    """Nested by time, or in torch's columns."""
    assert (expected, 0) == pairs(moments)


def test_a_file_cut_in_a_column_of_ends_keeps_the_slices_before() -> None:
    """Begins without an end are counted."""
    assert ([("a", 0, 3), ("b", 4, 9)], 1) == pairs("a0 b4 c9 /3 /9")
    assert ([], 2) == pairs("a0 b4")


def descriptor(uuid: int, **fields: Any) -> Any:
    return proto.TrackDescriptor(uuid=uuid, **fields)


def test_a_track_stands_on_its_thread_or_its_process() -> None:
    """A track without either is a thread of its parent's process; a cycle of parents has no process."""
    tracks = TrackDescriptors()
    tracks.update(descriptor(1, process=proto.ProcessDescriptor(pid=10)))
    tracks.update(descriptor(2, parent_uuid=1, thread=proto.ThreadDescriptor(pid=10, tid=11)))
    tracks.update(descriptor(3, parent_uuid=1, name="lane"))
    tracks.update(descriptor(4, parent_uuid=3))
    tracks.update(descriptor(5, parent_uuid=6))
    tracks.update(descriptor(6, parent_uuid=5))

    assert [(10, 11), (10, 3), (10, 4), (0, 5), (0, 9)] == [tracks.thread(uuid) for uuid in (2, 3, 4, 5, 9)]


def test_clocks_are_tied_to_the_epoch_by_the_first_snapshot() -> None:
    """Units and incremental clocks are converted; a clock without a snapshot is not."""
    clocks = PerfettoClocks()
    snapshot = proto.ClockSnapshot()
    snapshot.clocks.add(clock_id=1, timestamp=5000)
    snapshot.clocks.add(clock_id=6, timestamp=1000)
    snapshot.clocks.add(clock_id=64, timestamp=1, unit_multiplier_ns=1000, is_incremental=True)
    clocks.update(snapshot, 1)
    snapshot.clocks[0].timestamp = 9999
    snapshot.clocks[2].is_incremental = False
    clocks.update(snapshot, 2)

    assert 5001 == clocks.time(1001, 0, 1)
    assert [7000, 8000] == [clocks.time(step, 64, 1) for step in (2, 1)]
    assert 77 == clocks.time(77, 3, 1)
