"""One rank's trace as columns: arrays and a string table, not an object per event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.columns import Columns
from dptrace.core.gpu import GpuProperties
from dptrace.core.intervals import EMPTY, Int64
from dptrace.core.notes import Note

# What a device's allocators did: each allocation and each free of one rank, as columns.

TOTAL_UNKNOWN = -(2**62)
"""Total of an event that has none: files of torch before 1.11."""


class MemoryEvents(Columns, frozen=True):
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


NO_MEMORY_EVENTS = MemoryEvents.empty()
"""The events of a file without any."""


UNKNOWN_GROUP = "?"
"""Name of a group that is one of several, where nothing shows which."""


class Category(IntEnum):
    """Category of a complete event, independent of the file's spelling."""

    PYTHON = 0
    """A Python function, recorded with ``with_stack=True``; only long ones are kept."""
    CPU_OP = 1
    ANNOTATION = 2
    """A ``record_function`` label on the CPU; not its copy on a GPU."""
    LAUNCH = 3
    """A call to the runtime or driver of CUDA, HIP or another device."""
    KERNEL = 4
    MEMORY = 5
    """A memcpy or memset on a device."""


class Message(msgspec.Struct, frozen=True):
    """A collective, or a send or receive, as far as a file describes it."""

    kind: str = ""
    bytes: int = 0
    """Message bytes as nccl-tests counts them; 0 if the file does not say."""
    dtype: str = ""
    group: str = ""
    """Name of the process group; UNKNOWN_GROUP where it is one of several and the file does not say which."""
    group_size: int = 0
    seq: int = -1
    ranks: tuple[int, ...] = ()
    """The group's global ranks, as far as the file lists them."""
    description: str = ""
    """Purpose of the group: ``default_pg``, ``mesh_tp`` …"""
    peer: int = -1
    """Global rank at the other end of a send or receive."""


class CommArgs(Message, frozen=True):
    """Metadata of the collective that an event belongs to; its kind is as the file spells it (``_allgather_base``)."""

    elements: int = 0
    """Elements of the larger of input and output, where the file records shapes only."""


@dataclass(frozen=True, slots=True)
class EventDetails:
    """What a file records about single calls and kernels, as text; empty where it does not."""

    shapes: str = ""
    """Sizes of an operator's inputs: ``[8, 512] × [512, 64]``."""
    dtypes: str = ""
    """Their types: ``float, float``."""
    grid: str = ""
    """A kernel's blocks: ``[32, 1, 1]``."""
    block: str = ""
    """The threads of one of its blocks."""
    bytes: int = -1
    """Size of a copy; -1 where the file does not say."""
    stack: str = ""
    """Python's call stack, innermost first, a line per call."""


class OperatorInputs(msgspec.Struct, frozen=True):
    """What a file records about the inputs of an operator's call, as the JSON lists in the file; empty without them."""

    dims: str = ""
    """Sizes: ``[[8, 512], [512, 64], []]``; of a list of tensors a list of sizes."""
    dtypes: str = ""
    """Types: ``["float", "float", "Scalar"]``."""
    concrete: str = ""
    """Values of inputs that are no tensors: ``["", "", "1"]``."""
    strides: str = ""


class OperatorArgs(msgspec.Struct, frozen=True):
    """What a file records about operators; each column has one entry per event of the trace."""

    inputs: NDArray[np.int32]
    """Index into ``table``; -1 for events that are no operators."""
    table: tuple[OperatorInputs, ...]
    sequence: Int64
    """Autograd's number of the node that the operator creates or runs; -1 without one."""
    forward_thread: NDArray[np.int32]
    """Autograd's number of the thread that created the node, in backward; 0 elsewhere."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The complete events of one rank's file, sorted by start; each column has one entry per event."""

    path: str
    rank: int | None
    """From ``distributedInfo``; None if the file does not say."""
    world_size: int | None
    start_ns: Int64
    """Nanoseconds since the Unix epoch, or since boot in files that count from there."""
    end_ns: Int64
    category: NDArray[np.uint8]
    name: NDArray[np.int32]
    """Index into ``names``."""
    names: tuple[str, ...]
    thread: NDArray[np.int32]
    """Index of the event's (pid, tid) pair."""
    correlation: Int64
    """Links a kernel to the call that launched it; -1 if there is none."""
    device: NDArray[np.int32]
    stream: Int64
    comm: dict[int, CommArgs] = field(repr=False)
    """Collective metadata by event index, for the events that carry it."""
    products: dict[int, OperatorInputs] = field(default_factory=dict, repr=False)
    """Inputs of operators whose FLOPs are known, by event index, where the file records them."""
    gpus: dict[int, GpuProperties] = field(default_factory=dict)
    """What the file records of each GPU, by the index of the device."""
    damage: tuple[Note, ...] = ()
    """What was truncated, repaired, dropped or impossible: a sentence each, starting with the file's name."""
    notes: tuple[Note, ...] = ()
    """What else limits the figures: what such a file does not hold, and what was inferred."""
    cut: bool = False
    """Whether the file ends before the recording ends."""
    unread_device: str = ""
    """Name of a device whose events are in the file and are not read: that it did nothing can't be said."""
    lost: int = 0
    """Events of a device that were left out: of no duration, or of an impossible one."""
    undecoded: int = 0
    """Events, of a device or not, that could not be decoded."""
    out_of_window: int = 0
    """Records that Kineto left out as outside the recording's window, by its log ("Out-of-range"): those of a warm-up
    or, where launches lack their kernels, of these."""
    steps_marked: bool = True
    """Whether what wrote the file marks steps, as torch.profiler does; else they are inferred from what repeats."""
    has_syncs: bool = True
    """Whether the file may hold synchronizations, which are no events of the trace."""
    host_name: str = ""
    """Name of the machine that recorded it; empty if the file does not say."""
    detail: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """Index into ``details``, one per event; empty where they were not read."""
    details: tuple[EventDetails, ...] = ()
    threads: tuple[str, ...] = ()
    """The file's id of each thread; empty where they are not known."""
    operators: OperatorArgs | None = None
    """Inputs and sequence numbers of operators; None where they were not read."""
    memory: MemoryEvents | None = None
    """The allocations and frees; None where they were not read."""
    launch: Int64 = field(default_factory=lambda: EMPTY[0])
    """Index of the call that launched each event, -1 without one; empty before the trace is examined."""
    later_ns: tuple[int, ...] = ()
    """First time of each window after the first, where the trace is of several files, between which all is unknown."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def device_names(self) -> dict[int, str]:
        """The name of each GPU, by the index of the device."""
        return {number: gpu.name for number, gpu in self.gpus.items()}

    def without(self, dropped: NDArray[np.bool_]) -> Trace:
        """Return the trace without the events of a mask."""
        kept = ~dropped
        place = np.cumsum(kept) - 1
        columns = ("start_ns", "end_ns", "category", "name", "thread", "correlation", "device", "stream", "detail")
        whole = (name for name in columns if len(getattr(self, name)) == len(self))
        changed: dict[str, object] = {name: getattr(self, name)[kept] for name in whole}
        for name in ("comm", "products"):
            changed[name] = {int(place[event]): of for event, of in getattr(self, name).items() if kept[event]}
        if self.operators is not None:
            inputs, sequence, thread = self.operators.inputs, self.operators.sequence, self.operators.forward_thread
            changed["operators"] = OperatorArgs(inputs[kept], self.operators.table, sequence[kept], thread[kept])
        return replace(self, launch=EMPTY[0], **changed)  # type: ignore[arg-type]

    @property
    def windows(self) -> tuple[Trace, ...]:
        """The trace of each window; itself where it is of one file."""
        if not self.later_ns:
            return (self,)
        window = np.searchsorted(np.array(self.later_ns), self.start_ns, side="right")
        return tuple(replace(self.without(window != n), later_ns=()) for n in range(len(self.later_ns) + 1))

    def named(self, *prefixes: str) -> NDArray[np.bool_]:
        """Return a mask of the events whose name starts with one of *prefixes*."""
        return self._events_of(np.fromiter((name.startswith(prefixes) for name in self.names), np.bool_))

    def matching(self, test: Callable[[str], object]) -> NDArray[np.bool_]:
        """Return a mask of the events whose name passes a test, which is made once for each name."""
        return self._events_of(np.fromiter((bool(test(name)) for name in self.names), np.bool_))

    def _events_of(self, names: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return names[self.name] if len(names) else np.zeros(len(self), np.bool_)
