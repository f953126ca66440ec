"""What a device's allocators did: each allocation and each free of one rank, as columns."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import EMPTY, Int64

__all__ = ["NO_MEMORY_EVENTS", "TOTAL_UNKNOWN", "MemoryEvents"]

TOTAL_UNKNOWN = -(2**62)
"""Total of an event that has none: files of torch before 1.11."""


class MemoryEvents(msgspec.Struct, frozen=True):
    """The allocations and frees of one rank's file, sorted by time; each column has one entry per event."""

    time_ns: Int64
    """On the clock of the trace's other events."""
    bytes: Int64
    """Size of the block: above 0 for an allocation, below 0 for a free; for one that failed, the size asked for."""
    address: Int64
    allocated: Int64
    """Bytes allocated on the device after the event, as the file has it; TOTAL_UNKNOWN where it does not say."""
    reserved: Int64
    """Bytes that the caching allocator holds on the device, allocated or not; 0 on a CPU."""
    device_type: NDArray[np.int32]
    """As torch numbers them: 0 a CPU, 1 CUDA, 6 HIP."""
    device: NDArray[np.int32]
    """Index of the device; -1 for a CPU."""
    thread: NDArray[np.int32]
    """Index of the event's (pid, tid) pair, as in the trace."""
    failed: NDArray[np.bool_]
    """Whether the allocator found no memory (``[OutOfMemory]``)."""
    unreadable: int = 0
    """Events without a readable size, address, device or time; they are left out."""

    def __len__(self) -> int:
        return len(self.time_ns)


_NO_INT32 = np.empty(0, np.int32)
NO_MEMORY_EVENTS = MemoryEvents(
    *(EMPTY[0],) * 5, device_type=_NO_INT32, device=_NO_INT32, thread=_NO_INT32, failed=np.empty(0, np.bool_)
)
"""The events of a file without any."""
