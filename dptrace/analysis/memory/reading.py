"""Read the memory of a rank's devices from its file, on request: figures of time do not need it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import fields, replace
from numpy.typing import NDArray

from dptrace.analysis.memory.blocks import blocks_of, continued_totals
from dptrace.analysis.memory.kinds import kinds_of
from dptrace.analysis.memory.origins import optimizer_steps, origins_of
from dptrace.analysis.memory.usage import AllocatorCalls, DeviceMemory, MemoryUse, Origins
from dptrace.core.intervals import Int64
from dptrace.readers.source import Source
from dptrace.readers.trace import NO_MEMORY_EVENTS, Category, MemoryEvents, Trace
from dptrace.timeline.host_calls import SecondPass
from dptrace.timeline.host_events import ALLOCATOR
from dptrace.timeline.steps import WHOLE_TRACE, CpuSteps, backward_starts, cpu_steps

__all__ = ["MEMORY", "memory_use"]

_CPU = 0
"""Torch's number of the device type."""


def memory_use(trace: Trace) -> MemoryUse:
    """Return the memory of a rank's devices; *trace* was read with its memory events."""
    events = trace.memory or NO_MEMORY_EVENTS
    if not len(events):
        return MemoryUse(unreadable=events.unreadable)
    steps = cpu_steps(trace)
    origins = origins_of(trace, steps, events)
    backward, optimizer = backward_starts(trace), optimizer_steps(trace)
    # A CPU's memory after that of the GPUs.
    number = np.where(events.device_type == _CPU, np.iinfo(np.int32).max, events.device)
    devices = []
    for device in np.unique(number[~events.failed]):
        own = (number == device) & ~events.failed
        index = -1 if device == np.iinfo(np.int32).max else int(device)
        devices.append(_device(index, _filter(events, own), origins.filter(own), backward, optimizer))
    calls = _calls(trace, steps)
    names, devices, calls = _compact(trace.names, devices, calls)
    failed = _filter(events, events.failed)
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


def _filter(events: MemoryEvents, chosen: NDArray[np.bool_]) -> MemoryEvents:
    columns = [column.name for column in fields(events) if column.name != "unreadable"]
    return replace(events, **{name: getattr(events, name)[chosen] for name in columns}, unreadable=0)


def _calls(trace: Trace, steps: CpuSteps) -> AllocatorCalls:
    named = np.fromiter((bool(ALLOCATOR.match(name)) for name in trace.names), np.bool_, len(trace.names))
    calls = (trace.category == Category.LAUNCH) & trace.events_named(named)
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


def _read(source: Source, patterns: Sequence[str]) -> MemoryUse:
    # Few commands read files again.
    from dptrace.readers.kineto.details import has_memory_events
    from dptrace.readers.kineto.reader import read_trace

    if not has_memory_events(source):  # a tenth of the time of reading it
        return MemoryUse()
    return memory_use(read_trace(source, comm_patterns=patterns, memory=True))


MEMORY = SecondPass("memory", MemoryUse, _read)
"""Reads the memory of a rank's devices."""
