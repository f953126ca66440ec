"""The class that holds memory events."""

from __future__ import annotations

from dptrace.core.array_file import dumps, loads
from dptrace.readers.trace import NO_MEMORY_EVENTS, MemoryEvents


def test_a_file_without_memory_events_has_none_and_they_can_be_cached() -> None:
    """The empty columns have length 0, and come back from the cache's format."""
    again = loads(b"".join(map(bytes, dumps(NO_MEMORY_EVENTS))), MemoryEvents)

    assert len(NO_MEMORY_EVENTS) == len(again) == 0
