"""What a memory snapshot shows of each device: blocks in use, cached and split ones, and the peak before it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from dptrace.readers.memory_snapshot import Block, Frame, Segment, Snapshot, TraceEntry

__all__ = ["DeviceSnapshot", "LargeBlock", "device_snapshots"]

_MOST_BLOCKS = 20
_INTERNAL = ("torch/", "<", "??")
"""Parts of the names of files that are torch's own, not the user's."""
_ALLOCATED, _AWAITING, _INACTIVE = "active_allocated", "active_awaiting_free", "inactive"


class LargeBlock(msgspec.Struct, frozen=True):
    """A block in use, and where it was allocated."""

    bytes: int
    where: str
    """``train.py:12 forward``, the innermost call outside torch; empty without stacks."""


class DeviceSnapshot(msgspec.Struct, frozen=True):
    """The memory of one device at the time of the snapshot; all sizes in bytes."""

    device: int
    segments: int
    reserved_bytes: int
    """In segments, which came from the driver."""
    allocated_bytes: int
    """In blocks in use."""
    requested_bytes: int
    """What was asked for; the rest of allocated_bytes is rounding."""
    awaiting_free_bytes: int
    """Freed, but another stream may still use it."""
    inactive_bytes: int
    """In blocks not in use."""
    inactive_split_bytes: int
    """Of these in segments of which another block is in use: the allocator can't give them back."""
    largest_free_bytes: int
    """The largest block not in use: an allocation above it needs a new segment."""
    blocks: tuple[LargeBlock, ...]
    peak_bytes: int | None
    """The most that was allocated since torch has recorded the history; None without a history."""
    actions: dict[str, int]
    """How often the allocator did what, by torch's name of the action."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return msgspec.structs.asdict(self) | {"blocks": [msgspec.structs.asdict(block) for block in self.blocks]}


def device_snapshots(snapshot: Snapshot) -> list[DeviceSnapshot]:
    """Return each device that has segments or a history, by its number."""
    numbers = {segment.device for segment in snapshot.segments}
    numbers |= {number for number, trace in enumerate(snapshot.device_traces) if trace}
    return [
        _device(
            number,
            [segment for segment in snapshot.segments if segment.device == number],
            snapshot.device_traces[number] if 0 <= number < len(snapshot.device_traces) else [],
        )
        for number in sorted(numbers)
    ]


def _device(number: int, segments: list[Segment], trace: list[TraceEntry]) -> DeviceSnapshot:
    blocks = [block for segment in segments for block in segment.blocks]
    used = [block for block in blocks if block.state == _ALLOCATED]
    free = [block for block in blocks if block.state == _INACTIVE]
    split = [
        block
        for segment in segments
        if any(block.state != _INACTIVE for block in segment.blocks)
        for block in segment.blocks
        if block.state == _INACTIVE
    ]
    allocated = _bytes(used)
    largest = sorted(used, key=lambda block: -block.size)[:_MOST_BLOCKS]
    return DeviceSnapshot(
        device=number,
        segments=len(segments),
        reserved_bytes=sum(segment.total_size for segment in segments),
        allocated_bytes=allocated,
        requested_bytes=sum(block.requested_size or block.size for block in used),
        awaiting_free_bytes=_bytes([block for block in blocks if block.state == _AWAITING]),
        inactive_bytes=_bytes(free),
        inactive_split_bytes=_bytes(split),
        largest_free_bytes=max((block.size for block in free), default=0),
        blocks=tuple(LargeBlock(block.size, _where(block.frames)) for block in largest),
        peak_bytes=_peak(trace, allocated),
        actions=dict(Counter(entry.action for entry in trace)),
    )


def _bytes(blocks: list[Block]) -> int:
    return sum(block.size for block in blocks)


def _peak(trace: list[TraceEntry], at_end: int) -> int | None:
    """Return the highest level of a history that ends with *at_end* bytes, walking back from there."""
    if not trace:
        return None
    level = peak = at_end
    for entry in reversed(trace):
        if entry.action == "alloc":
            level -= entry.size
        elif entry.action == "free_requested":
            level += entry.size
        peak = max(peak, level)
    return peak


def _where(frames: list[Frame]) -> str:
    """Return the innermost call outside torch, or else the innermost one."""
    own = next((frame for frame in frames if not any(part in frame.filename for part in _INTERNAL)), None)
    frame = own or (frames[0] if frames else None)
    return f"{frame.filename}:{frame.line} {frame.name}" if frame is not None else ""
