"""Figures of a memory snapshot."""

from __future__ import annotations

import msgspec
import pytest

from dptrace.analysis.memory.snapshot import device_snapshots
from dptrace.readers.memory_snapshot import Snapshot, TraceEntry
from tests.support.snapshot_files import SNAPSHOT


def test_reserved_memory_is_split_by_use() -> None:
    """Checked by hand: 512 bytes are inactive in a segment in use, 4,096 could be given back."""
    first, second = device_snapshots(msgspec.convert(SNAPSHOT, Snapshot))

    assert (0, 2, 6144, 1024, 1000, 512, 4608, 512, 4096) == (
        *(first.device, first.segments, first.reserved_bytes, first.allocated_bytes, first.requested_bytes),
        *(first.awaiting_free_bytes, first.inactive_bytes, first.inactive_split_bytes, first.largest_free_bytes),
    )
    assert first.reserved_bytes == first.allocated_bytes + first.awaiting_free_bytes + first.inactive_bytes
    assert [(1024, "train.py:12 forward")] == [(block.bytes, block.where) for block in first.blocks]
    assert (512, None, {}) == (second.allocated_bytes, second.peak_bytes, second.actions)


def test_the_peak_is_found_back_from_the_end() -> None:
    """3,000 bytes were allocated before the 1,024 of the end."""
    first, _ = device_snapshots(msgspec.convert(SNAPSHOT, Snapshot))

    assert 3000 == first.peak_bytes
    assert (1, 2) == (first.actions["oom"], first.actions["alloc"])


@pytest.mark.parametrize("number", [0, 3])
def test_a_device_with_a_history_alone_is_shown(number: int) -> None:
    """All of its memory may have been given back."""
    traces: list[list[TraceEntry]] = [[] for _ in range(number)]
    history = [TraceEntry("alloc", 8), TraceEntry("free_requested", 8)]
    [device] = device_snapshots(Snapshot([], [*traces, history]))

    assert (number, 0, 8) == (device.device, device.allocated_bytes, device.peak_bytes)
