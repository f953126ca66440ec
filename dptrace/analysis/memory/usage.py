"""The memory of one rank's devices as its allocators recorded it: events, and the blocks that they delimit."""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import EMPTY, Int64
from dptrace.readers.trace import NO_MEMORY_EVENTS, MemoryEvents

__all__ = ["KIND_LABELS", "NOWHERE", "AllocatorCalls", "Blocks", "DeviceMemory", "MemoryKind", "MemoryUse", "Origins"]

NOWHERE = -1
"""Name of what surrounds an event that nothing surrounds, and step of an event outside all steps."""


class MemoryKind(IntEnum):
    """What a block is for, as its lifetime shows; see docs/definitions.md."""

    PREEXISTING = 0
    """Allocated before the recording began: parameters, and all else that was there."""
    OPTIMIZER_STATE = 1
    GRADIENT = 2
    ACTIVATION = 3
    COMMUNICATION = 4
    TEMPORARY = 5
    OTHER = 6


KIND_LABELS = {
    MemoryKind.PREEXISTING: "before recording",
    MemoryKind.OPTIMIZER_STATE: "optimizer state",
    MemoryKind.GRADIENT: "gradients",
    MemoryKind.ACTIVATION: "activations",
    MemoryKind.COMMUNICATION: "communication buffers",
    MemoryKind.TEMPORARY: "temporary",
    MemoryKind.OTHER: "other",
}


class Origins(msgspec.Struct, frozen=True):
    """What the host did at each event: one entry per event in each column."""

    step: NDArray[np.int32]
    """Index into ``MemoryUse.steps``, or BEFORE_FIRST or AFTER_LAST of the timeline's model."""
    phase: NDArray[np.uint8]
    """:class:`~dptrace.timeline.model.Phase` values."""
    operator: NDArray[np.int32]
    """The outermost operator or autograd function around the event, an index into ``MemoryUse.names``; or NOWHERE."""
    module: NDArray[np.int32]
    """The innermost ``nn.Module``, else the innermost annotation; in the same way."""
    communicates: NDArray[np.bool_]
    """Whether a collective's call is around it."""

    def filter(self, chosen: NDArray[np.integer] | NDArray[np.bool_]) -> Origins:
        """Select or reorder events."""
        return Origins(
            self.step[chosen],
            self.phase[chosen],
            self.operator[chosen],
            self.module[chosen],
            self.communicates[chosen],
        )


class Blocks(msgspec.Struct, frozen=True):
    """Stretches of memory between an allocation and its free; one entry per block in each column."""

    bytes: Int64
    born: Int64
    """Index of the event that allocated it; NOWHERE if it was before the recording."""
    freed: Int64
    """Index of the event that freed it; NOWHERE if nothing in the recording did."""

    def __len__(self) -> int:
        return len(self.bytes)


class DeviceMemory(msgspec.Struct, frozen=True):
    """The memory of one device, as one process uses it."""

    device: int
    """Index of the GPU; -1 for the CPU."""
    events: MemoryEvents
    origins: Origins
    blocks: Blocks
    kind: NDArray[np.uint8]
    """:class:`MemoryKind` of each block."""
    gaps: int = 0
    """Events whose total does not continue the one before: events in between are missing."""

    def __len__(self) -> int:
        return len(self.events)

    @property
    def label(self) -> str:
        """``GPU 0`` or ``CPU``."""
        return "CPU" if self.device < 0 else f"GPU {self.device}"

    @property
    def on_cpu(self) -> bool:
        """Whether this is the host's memory; its totals begin at 0 with the recording."""
        return self.device < 0

    @property
    def baseline_bytes(self) -> int:
        """Bytes allocated when the recording began; 0 on a CPU, whose totals begin there."""
        return int(self.events.allocated[0] - self.events.bytes[0])

    @property
    def freed_preexisting_bytes(self) -> int:
        """Bytes freed during the recording that were allocated before: those of the baseline that are known."""
        return int(self.blocks.bytes[self.blocks.born == NOWHERE].sum())


class AllocatorCalls(msgspec.Struct, frozen=True):
    """Calls of the device's runtime that allocate or free memory, and allocations that failed; sorted by start."""

    start_ns: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    end_ns: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    name: NDArray[np.int32] = msgspec.field(default_factory=lambda: np.empty(0, np.int32))
    """Index into ``MemoryUse.names``."""
    step: NDArray[np.int32] = msgspec.field(default_factory=lambda: np.empty(0, np.int32))

    def __len__(self) -> int:
        return len(self.start_ns)


class MemoryUse(msgspec.Struct, frozen=True):
    """The memory of all devices that one rank uses; empty where its file has no memory events."""

    devices: tuple[DeviceMemory, ...] = ()
    """GPUs first."""
    names: tuple[str, ...] = ()
    """Of operators, modules, annotations and calls; as the file spells them."""
    steps: tuple[str, ...] = ()
    """Names of the steps on the host, by the profiler's marks."""
    step_ns: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    """Where each begins, and the end of the last."""
    calls: AllocatorCalls = msgspec.field(default_factory=AllocatorCalls)
    failed: MemoryEvents = NO_MEMORY_EVENTS
    """Allocations for which the allocator found no memory."""
    unreadable: int = 0
    """Events that could not be read."""

    def __len__(self) -> int:
        return sum(map(len, self.devices))
