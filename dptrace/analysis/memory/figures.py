"""Figures of a device's memory: its peaks, what was alive at them, and for what.

A *level* is the memory between two events: level 0 before the first of them, level k after the k-th.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.analysis.memory.usage import NOWHERE, DeviceMemory, MemoryKind
from dptrace.core.intervals import Int64
from dptrace.timeline.model import Phase

__all__ = [
    "Group",
    "Peak",
    "PhasePeak",
    "alive_blocks",
    "bytes_by_kind",
    "groups",
    "kind_groups",
    "levels_within",
    "peak_among",
    "phase_peaks",
    "total_bytes",
]


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
            levels[kind] += sign * _sums(event[chosen] + 1, blocks.bytes[chosen], count)
    np.cumsum(levels, axis=1, out=levels)
    levels[MemoryKind.PREEXISTING] += total_bytes(device) - levels.sum(axis=0)
    return levels


def _sums(place: Int64, size: Int64, count: int) -> Int64:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, place, size)  # bincount would sum in doubles
    return sums


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
            _sums(group[alive], blocks.bytes[alive], count),
            np.bincount(group[alive], minlength=count),
            _sums(group[allocated], blocks.bytes[allocated], count),
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
