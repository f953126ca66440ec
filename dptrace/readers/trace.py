"""One rank's trace as columns: arrays and a string table, not an object per event."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64

__all__ = ["UNKNOWN_GROUP", "Category", "CommArgs", "Trace"]

UNKNOWN_GROUP = "?"
"""Name of a group that is one of several, and nothing tells which."""


class Category(IntEnum):
    """What a complete event is, whatever the file's spelling of it."""

    CPU_OP = 1
    ANNOTATION = 2
    """A ``record_function`` label on the CPU; never its copy on a GPU."""
    LAUNCH = 3
    """A call of the CUDA or HIP runtime or driver."""
    KERNEL = 4
    MEMORY = 5
    """A memcpy or memset on a device."""


@dataclass(frozen=True, slots=True)
class CommArgs:
    """What an event says of the collective it belongs to."""

    collective: str = ""
    """Name as the file gives it (``allreduce``, ``_allgather_base`` …), or nothing."""
    bytes: int = 0
    """Message bytes as nccl-tests counts them; 0 when the file does not say."""
    dtype: str = ""
    group: str = ""
    """Its name; UNTOLD where it is one of several and the file does not say which."""
    group_size: int = 0
    seq: int = -1
    ranks: tuple[int, ...] = ()
    """The group's ranks in the whole job, as far as the file lists them."""
    description: str = ""
    """What the group is for: ``default_pg``, ``mesh_tp`` …"""
    peer: int = -1
    """Of a send and a receive: the rank in the whole job at the other end."""
    elements: int = 0
    """Numbers in the larger of what goes in and what comes out, where the file tells of shapes alone."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The complete events of one rank's file, sorted by start; every column has one entry per event."""

    path: str
    rank: int | None
    """From ``distributedInfo``; nothing when the file does not say."""
    world_size: int | None
    start_ns: Int64
    """Nanoseconds since the Unix epoch, or since boot in files that say so."""
    end_ns: Int64
    category: NDArray[np.uint8]
    name: NDArray[np.int32]
    """Index into ``names``."""
    names: tuple[str, ...]
    thread: NDArray[np.int32]
    """Index of the (pid, tid) pair that the event stands on."""
    correlation: Int64
    """Joins a kernel to the call that launched it; -1 when there is none."""
    device: NDArray[np.int32]
    stream: Int64
    comm: dict[int, CommArgs] = field(repr=False)
    """Collective metadata, by event index, of the few events that carry any."""
    device_names: dict[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What is to be known of the file without anything being wrong with it, a sentence each."""
    damage: tuple[str, ...] = ()
    """What was cut off, repaired, left out or impossible, a sentence each, beginning with the file's name."""
    cut: bool = False
    """Whether the file ends before the recording does."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def named(self, *prefixes: str) -> NDArray[np.bool_]:
        """Tell which events have a name that starts with one of *prefixes*."""
        match = np.fromiter((name.startswith(prefixes) for name in self.names), np.bool_, len(self.names))
        return match[self.name] if len(self.names) else np.zeros(len(self), np.bool_)

    def events_named(self, names: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Turn a verdict per entry of the string table into a verdict per event."""
        return names[self.name] if len(self.names) else np.zeros(len(self), np.bool_)
