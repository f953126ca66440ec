"""The memory of one rank's devices as its allocators recorded it: events, and the blocks that they delimit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.columns import Columns
from dptrace.core.intervals import EMPTY, Int64, mask_of, sums
from dptrace.core.patterns import Patterns
from dptrace.readers.communication import METADATA_PREFIXES
from dptrace.readers.formats import is_database, read_trace
from dptrace.readers.source import Source
from dptrace.readers.trace import NO_MEMORY_EVENTS, TOTAL_UNKNOWN, Category, MemoryEvents, Trace
from dptrace.timeline.collectives import last_enclosing, outermost
from dptrace.timeline.host_calls import SecondPass
from dptrace.timeline.host_events import ALLOCATOR
from dptrace.timeline.model import Phase
from dptrace.timeline.phase_labels import labeled_phases
from dptrace.timeline.steps import MARK, WHOLE_TRACE, WRAPPER, CpuSteps, backward_starts, cpu_steps, phases

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


class Origins(Columns, frozen=True):
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


class Blocks(Columns, frozen=True):
    """Stretches of memory between an allocation and its free; one entry per block in each column."""

    bytes: Int64
    born: Int64
    """Index of the event that allocated it; NOWHERE if it was before the recording."""
    freed: Int64
    """Index of the event that freed it; NOWHERE if nothing in the recording did."""


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


class AllocatorCalls(Columns, frozen=True):
    """Calls of the device's runtime that allocate or free memory, and allocations that failed; sorted by start."""

    start_ns: Int64
    end_ns: Int64
    name: NDArray[np.int32]
    """Index into ``MemoryUse.names``."""
    step: NDArray[np.int32]


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
    calls: AllocatorCalls = msgspec.field(default_factory=AllocatorCalls.empty)
    failed: MemoryEvents = NO_MEMORY_EVENTS
    """Allocations for which the allocator found no memory."""
    unreadable: int = 0
    """Events that could not be read."""
    windows: tuple[MemoryUse, ...] = ()
    """Those of each window, where a rank has several; all else is empty then."""

    def __len__(self) -> int:
        return sum(map(len, self.devices)) + sum(map(len, self.windows))

    @property
    def parts(self) -> tuple[MemoryUse, ...]:
        """The memory of each recording: blocks live within one, and what is freed between two is in none."""
        return self.windows or (self,)


# Figures of a device's memory: its peaks, what was alive at them, and for what.
#
# A *level* is the memory between two events: level 0 before the first of them, level k after the k-th.


class Peak(msgspec.Struct, frozen=True):
    """The highest level of a device's allocated memory, the first of equal ones."""

    level: int
    at_ns: int
    """When it was reached."""
    bytes: int
    """Allocated; on a CPU, beyond what was allocated when recording began."""
    reserved_bytes: int
    """Held by the caching allocator at that time; 0 on a CPU."""
    step: int
    """Index of the step, or as in ``Origins.step``."""
    phase: Phase


class PhasePeak(msgspec.Struct, frozen=True):
    """The most that was allocated and reserved in one phase of one step."""

    step: int
    phase: Phase | None
    """None for the whole step."""
    bytes: int
    reserved_bytes: int


class Group(msgspec.Struct, frozen=True):
    """Blocks with something in common."""

    key: int
    """Kind, or index of the name of an operator or module."""
    peak_bytes: int
    """Bytes of those that are alive at the peak."""
    alive: int
    """Number of those."""
    allocated_bytes: int
    """Bytes of all of them, one after the other; 0 for what was there before the recording."""
    allocations: int


def total_bytes(device: DeviceMemory) -> Int64:
    """Return the bytes allocated at each level: the file's own totals."""
    return np.append(device.baseline_bytes, device.events.allocated)


def bytes_by_kind(device: DeviceMemory) -> Int64:
    """Return the bytes of each :class:`MemoryKind` at each level, shape (kinds, levels); their sum is the total.

    On a CPU, what was there before the recording is at most 0: as much as was freed of it.
    """
    blocks, count = device.blocks, len(device) + 1
    levels: Int64 = np.zeros((len(MemoryKind), count), np.int64)
    born = blocks.born != NOWHERE
    freed = blocks.freed != NOWHERE
    for kind in MemoryKind:
        own = device.kind == kind
        for chosen, event, sign in ((own & born, blocks.born, 1), (own & freed, blocks.freed, -1)):
            levels[kind] += sign * sums(event[chosen] + 1, blocks.bytes[chosen], count)
    np.cumsum(levels, axis=1, out=levels)
    levels[MemoryKind.PREEXISTING] += total_bytes(device) - levels.sum(axis=0)
    return levels


def levels_within(device: DeviceMemory, steps: NDArray[np.bool_] | None) -> Int64:
    """Return the levels during some steps, with the one that they begin at; empty where nothing happens in them.

    Args:
        steps: which steps, by index; None for the whole recording, what is outside its steps too.
    """
    if steps is None:
        return np.arange(len(device) + 1)
    step = device.origins.step
    events = np.flatnonzero((step >= 0) & np.append(steps, False)[np.where(step < len(steps), step, -1)])
    return np.unique(np.append(events, events + 1))


def peak_among(device: DeviceMemory, levels: Int64) -> Peak:
    """Return the peak among some levels, at least one."""
    total = total_bytes(device)[levels]
    level = int(levels[int(total.argmax())])
    event = max(level - 1, 0)
    return Peak(
        level,
        int(device.events.time_ns[event]),
        int(total.max()),
        int(device.events.reserved[event]),
        int(device.origins.step[event]),
        Phase(int(device.origins.phase[event])),
    )


def alive_blocks(device: DeviceMemory, level: int) -> Int64:
    """Return the blocks that are alive at a level, the largest first."""
    blocks = device.blocks
    alive = np.flatnonzero((blocks.born < level) & ((blocks.freed == NOWHERE) | (blocks.freed >= level)))
    return alive[np.argsort(-blocks.bytes[alive], kind="stable")]


def phase_peaks(device: DeviceMemory) -> list[PhasePeak]:
    """Return the peaks of each step, and of each phase in it that allocates or frees anything.

    Memory that is held when a phase begins counts for it.
    """
    events, origins = device.events, device.origins
    # The level before an event counts for its phase, too: so the phase begins with what it finds.
    high = np.maximum(events.allocated, events.allocated - events.bytes)
    reserved = np.maximum(events.reserved, np.append(events.reserved[:1], events.reserved[:-1]))
    inside = np.flatnonzero(origins.step >= 0)
    if not len(inside):
        return []
    step, phase = origins.step[inside].astype(np.int64), origins.phase[inside].astype(np.int64)
    peaks: list[tuple[int, int, int]] = []
    for key in (step * _PHASES, step * _PHASES + 1 + phase):
        order = np.argsort(key, kind="stable")
        first = np.flatnonzero(np.diff(key[order], prepend=-1))
        most = [np.maximum.reduceat(column[inside[order]], first).tolist() for column in (high, reserved)]
        peaks += zip(key[order][first].tolist(), *most, strict=True)
    return [
        PhasePeak(k // _PHASES, Phase(k % _PHASES - 1) if k % _PHASES else None, *most) for k, *most in sorted(peaks)
    ]


_PHASES = len(Phase) + 1
"""The phases and, as number 0, all of them."""


def groups(device: DeviceMemory, key: NDArray[np.integer], levels: Int64, peak: Peak) -> list[Group]:
    """Return the blocks by a key, those with the most bytes at the peak first.

    Args:
        key: of each block.
        levels: those in which allocations count.
        peak: the peak among them.
    """
    blocks = device.blocks
    alive = np.zeros(len(blocks), np.bool_)
    alive[alive_blocks(device, peak.level)] = True
    allocated = np.isin(blocks.born + 1, levels) & (blocks.born != NOWHERE)
    keys, group = np.unique(key, return_inverse=True)
    count = len(keys)
    found = [
        Group(*map(int, row))
        for row in zip(
            keys,
            sums(group[alive], blocks.bytes[alive], count),
            np.bincount(group[alive], minlength=count),
            sums(group[allocated], blocks.bytes[allocated], count),
            np.bincount(group[allocated], minlength=count),
            strict=True,
        )
    ]
    used = [one for one in found if one.alive or one.allocations]
    return sorted(used, key=lambda one: (-one.peak_bytes, -one.allocated_bytes, one.key))


def kind_groups(device: DeviceMemory, levels: Int64, peak: Peak) -> list[Group]:
    """Return the blocks by their kind; what was there before the recording has all bytes that the total shows."""
    before = int(bytes_by_kind(device)[MemoryKind.PREEXISTING, peak.level])
    found = {one.key: one for one in groups(device, device.kind, levels, peak)}
    known = found.pop(int(MemoryKind.PREEXISTING), Group(int(MemoryKind.PREEXISTING), 0, 0, 0, 0))
    if before:
        found[known.key] = replace(known, peak_bytes=before)
    return sorted(found.values(), key=lambda one: (-one.peak_bytes, -one.allocated_bytes, one.key))


# Blocks of memory: which free belongs to which allocation.


def blocks_of(events: MemoryEvents) -> Blocks:
    """Pair the allocations and frees of one device by their addresses, in the order of their time.

    An allocation whose free is missing has none; a free without an allocation is of a block that was there before.
    """
    # Sorted by address and then time, a free lies right behind its allocation:
    #     +8 at a, -8 at a, +4 at a, +2 at b   →   blocks (+8 -8), (+4), (+2)
    order = np.lexsort((np.arange(len(events)), events.address))
    address, size = events.address[order], events.bytes[order]
    paired = (address[:-1] == address[1:]) & (size[:-1] > 0) & (size[:-1] == -size[1:])
    begins = size > 0
    ends_alone = (size < 0) & ~np.append(False, paired)[: len(size)]
    freed = np.full(len(order), NOWHERE, np.int64)
    freed[np.flatnonzero(paired)] = order[1:][paired]
    born = np.concatenate((order[begins], np.full(int(ends_alone.sum()), NOWHERE, np.int64)))
    freed = np.concatenate((freed[begins], order[ends_alone]))
    sizes = np.abs(events.bytes[np.where(born >= 0, born, freed)])
    by_time = np.argsort(np.where(born >= 0, born, freed), kind="stable")
    return Blocks(sizes[by_time], born[by_time], freed[by_time])


def continued_totals(events: MemoryEvents) -> tuple[MemoryEvents, int]:
    """Return a device's events with totals everywhere, and how often a total does not continue the one before.

    Files of torch before 1.11 have none: there, the totals are sums from 0.
    """
    if (events.allocated == TOTAL_UNKNOWN).any():
        return replace(events, allocated=np.cumsum(events.bytes)), 0
    return events, int((np.diff(events.allocated) != events.bytes[1:]).sum())


# What a block of memory is for, as far as its lifetime and its origin show it.
#
# ::
#
#     forward │ backward │ step │ forward │ backward │ step
#        ├──── activation ─┤ │
#        ├ ┤ temporary   ├─ gradient ─────┤ │        │
#                           │  ├ optimizer state ─────────── …

_INT64_MAX = np.iinfo(np.int64).max


def kinds_of(
    blocks: Blocks, events: MemoryEvents, origins: Origins, backward: Int64, optimizer: Int64
) -> NDArray[np.uint8]:
    """Return the :class:`MemoryKind` of each block. The first that holds counts:

    1. before recording: no allocation is recorded;
    2. gradient: allocated in backward, alive when an optimizer's step begins;
    3. optimizer state: allocated in the optimizer's phase, never freed;
    4. communication buffer: allocated within a collective's call;
    5. temporary: freed in the step and phase that allocated it;
    6. activation: allocated in forward, alive when a backward function begins, freed within the next step;
    7. other.

    Args:
        events, origins: those of the blocks' device.
        backward: when each backward function began, ascending, in ns.
        optimizer: when each step of an optimizer began, in the same way.
    """
    born, freed = blocks.born, blocks.freed
    known, kept = born != NOWHERE, freed == NOWHERE
    birth = events.time_ns[born]
    death = np.where(kept, _INT64_MAX, events.time_ns[freed])
    phase = origins.phase[born]
    together = ~kept & (phase == origins.phase[freed]) & (origins.step[born] == origins.step[freed])
    last = origins.step.max(initial=0)
    outlives = np.where(kept, last, origins.step[freed]) - origins.step[born] > 1
    conditions = [
        ~known,
        (phase == Phase.BACKWARD) & _within(optimizer, birth, death),
        (phase == Phase.OPTIMIZER) & kept,
        origins.communicates[born],
        together,
        (phase == Phase.FORWARD) & _within(backward, birth, death) & ~outlives,
    ]
    kinds = (
        MemoryKind.PREEXISTING,
        MemoryKind.GRADIENT,
        MemoryKind.OPTIMIZER_STATE,
        MemoryKind.COMMUNICATION,
        MemoryKind.TEMPORARY,
        MemoryKind.ACTIVATION,
    )
    return np.select(conditions, [np.uint8(kind) for kind in kinds], np.uint8(MemoryKind.OTHER)).astype(np.uint8)


def _within(times: Int64, birth: Int64, death: Int64) -> NDArray[np.bool_]:
    """Return for each block whether one of *times* (ascending) lies within its life."""
    return np.searchsorted(times, death, side="left") > np.searchsorted(times, birth, side="right")


# What the host did when memory was allocated or freed: step, phase, operator and module of each event.

_STEP_MARK, _OPTIMIZER_STEP = "ProfilerStep#", ("Optimizer.step", f"{MARK}optimizer")
_LABELS = (_STEP_MARK, "Optimizer.", "DistributedDataParallel.", WRAPPER)
"""Starts of the names of operators that only surround others, older torch's labels among them."""
_COMMUNICATES = (
    *METADATA_PREFIXES,
    *("c10d_functional::", "_c10d_functional_autograd::", "torch.distributed.ddp", "torch::distributed::reducer"),
    *("FSDP::all_gather", "FSDP::post_backward_reduce", "fsdp::", "FullyShardedDataParallel._all_gather"),
)
"""Starts of the names of events in which buffers of collectives are allocated."""
_MODULE = re.compile("nn.Module: ")


def origins_of(trace: Trace, steps: CpuSteps, events: MemoryEvents, said: NDArray[np.uint8]) -> Origins:
    """Return what surrounds each event on its thread; *said* is the phase that each label says."""
    thread, time = events.thread, events.time_ns
    operators = trace.category == Category.CPU_OP
    outer = outermost(trace, np.flatnonzero(operators & ~trace.named(*_LABELS)))
    labels = (trace.category == Category.ANNOTATION) & ~trace.named(_STEP_MARK, MARK, "DistributedDataParallel.")
    on_cpu = operators | (trace.category == Category.ANNOTATION)
    collectives = last_enclosing(trace, on_cpu & trace.named(*_COMMUNICATES), thread, time)
    return Origins(
        step=steps.index_at(time),
        phase=phases(trace, steps, thread, time, said),
        operator=_name(trace, last_enclosing(trace, mask_of(outer, len(trace)), thread, time)),
        module=_module(trace, labels, thread, time),
        communicates=collectives >= 0,
    )


def _module(trace: Trace, labels: NDArray[np.bool_], thread: NDArray[np.int32], time: Int64) -> NDArray[np.int32]:
    """Return the name of the innermost module around each event, else of the innermost label."""
    modules = (trace.category == Category.PYTHON) & trace.matching(_MODULE.match)
    module = _name(trace, last_enclosing(trace, modules, thread, time))
    label = _name(trace, last_enclosing(trace, labels, thread, time))
    return np.where(module >= 0, module, label).astype(np.int32)


def _name(trace: Trace, event: Int64) -> NDArray[np.int32]:
    return np.where(event >= 0, trace.name[event], NOWHERE).astype(np.int32)


def optimizer_steps(trace: Trace) -> Int64:
    """Return when each step of an optimizer began, ascending; empty where no label shows it."""
    on_cpu = (trace.category == Category.ANNOTATION) | (trace.category == Category.CPU_OP)
    return np.sort(trace.start_ns[on_cpu & trace.named(*_OPTIMIZER_STEP)])


# Read the memory of a rank's devices from its file, on request: figures of time do not need it.

_CPU = 0
"""Torch's number of the device type."""


def memory_use(trace: Trace, phase_labels: Sequence[str] = ()) -> MemoryUse:
    """Return the memory of a rank's devices.

    Args:
        trace: read with its memory events.
        phase_labels: as for :func:`~dptrace.timeline.build.build_timelines`.
    """
    events = trace.memory or NO_MEMORY_EVENTS
    if not len(events):
        return MemoryUse(unreadable=events.unreadable)
    steps = cpu_steps(trace)
    origins = origins_of(trace, steps, events, labeled_phases(trace, phase_labels))
    backward, optimizer = backward_starts(trace), optimizer_steps(trace)
    # A CPU's memory after that of the GPUs.
    number = np.where(events.device_type == _CPU, np.iinfo(np.int32).max, events.device)
    devices = []
    for device in np.unique(number[~events.failed]):
        own = (number == device) & ~events.failed
        index = -1 if device == np.iinfo(np.int32).max else int(device)
        devices.append(_device(index, replace(events.take(own), unreadable=0), origins.take(own), backward, optimizer))
    calls = _calls(trace, steps)
    names, devices, calls = _compact(trace.names, devices, calls)
    failed = replace(events.take(events.failed), unreadable=0)
    return MemoryUse(tuple(devices), names, *_steps(steps, events), calls, failed, events.unreadable)


def _steps(steps: CpuSteps, events: MemoryEvents) -> tuple[tuple[str, ...], Int64]:
    """Return the names and bounds of the steps; without marks, all events are one."""
    if len(steps):
        return steps.names, np.append(steps.start_ns, steps.end_ns)
    return (WHOLE_TRACE,), events.time_ns[[0, -1]]


def _device(index: int, events: MemoryEvents, origins: Origins, backward: Int64, optimizer: Int64) -> DeviceMemory:
    events, gaps = continued_totals(events)
    blocks = blocks_of(events)
    return DeviceMemory(index, events, origins, blocks, kinds_of(blocks, events, origins, backward, optimizer), gaps)


def _calls(trace: Trace, steps: CpuSteps) -> AllocatorCalls:
    calls = (trace.category == Category.LAUNCH) & trace.matching(ALLOCATOR.match)
    start = trace.start_ns[calls]
    return AllocatorCalls(start, trace.end_ns[calls], trace.name[calls], steps.index_at(start))


def _compact(
    names: tuple[str, ...], devices: Sequence[DeviceMemory], calls: AllocatorCalls
) -> tuple[tuple[str, ...], list[DeviceMemory], AllocatorCalls]:
    """Keep only the names that are used."""
    columns = [column for device in devices for column in (device.origins.operator, device.origins.module)]
    used = np.unique(np.concatenate((*columns, calls.name)))
    used = used[used >= 0]
    place = np.full(len(names) + 1, -1, np.int32)  # -1 stays -1
    place[used] = np.arange(len(used))
    devices = [
        replace(
            device,
            origins=replace(
                device.origins,
                operator=place[device.origins.operator],
                module=place[device.origins.module],
            ),
        )
        for device in devices
    ]
    return tuple(names[i] for i in used.tolist()), devices, replace(calls, name=place[calls.name])


def _read(source: Source, patterns: Patterns) -> MemoryUse:
    if source.windows:
        return MemoryUse(windows=tuple(_read(one, patterns) for one in source.windows))
    # Few commands read files again.
    from dptrace.readers.kineto.details import has_memory_events
    from dptrace.timeline.step_marks import with_steps

    if is_database(source) or not has_memory_events(source):  # a tenth of the time of reading it
        return MemoryUse()
    trace = with_steps(read_trace(source, patterns.comm, memory=True), patterns.step_range)
    return memory_use(trace, patterns.phase_labels)


MEMORY = SecondPass("memory", MemoryUse, _read)
"""Reads the memory of a rank's devices."""
