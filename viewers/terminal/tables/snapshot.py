"""A memory snapshot of torch's allocator in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from dptrace.analysis.memory.snapshot import DeviceSnapshot
from dptrace.core.units import byte_size, share
from dptrace.viewers.base.format import plain
from dptrace.viewers.base.table import TextTable, print_text_table

__all__ = ["print_snapshot"]

_FEW = 10


def print_snapshot(path: str, devices: Sequence[DeviceSnapshot], console: Console, every: bool = False) -> None:
    """Print how each device's reserved memory is used, the largest blocks, and what the allocator did.

    Args:
        every: print all blocks that were kept.
    """
    console.print(plain(f"{path} · memory snapshot"), style="bold")
    console.print()
    for device in devices:
        name = f"GPU {device.device}"
        print_text_table(_use(device), f"reserved memory of {name}", console)
        console.print()
        blocks = TextTable(
            ("allocated in", "bytes"), tuple((b.where or "–", byte_size(b.bytes)) for b in device.blocks), 1
        )
        if blocks.rows:
            print_text_table(blocks if every else blocks.truncated(_FEW), f"largest blocks in use on {name}", console)
            console.print()
        if device.actions:
            rows = tuple((action, f"{count:,}") for action, count in sorted(device.actions.items()))
            print_text_table(TextTable(("action", "times"), rows, 1), f"history of {name}", console)
            console.print()


def _use(device: DeviceSnapshot) -> TextTable:
    parts = [
        ("allocated", device.allocated_bytes),
        ("  of it rounding", device.allocated_bytes - device.requested_bytes),
        ("awaiting free (used by another stream)", device.awaiting_free_bytes),
        ("inactive, in segments that can be given back", device.inactive_bytes - device.inactive_split_bytes),
        ("inactive, in split segments (fragmentation)", device.inactive_split_bytes),
        ("  largest inactive block", device.largest_free_bytes),
        ("reserved", device.reserved_bytes),
    ]
    whole = max(device.reserved_bytes, 1)
    rows = [(name, byte_size(size) if size else "0 B", share(size / whole)) for name, size in parts]
    if device.peak_bytes is not None:
        rows.append(("peak of the recorded history", byte_size(device.peak_bytes), share(device.peak_bytes / whole)))
    return TextTable(("part", "bytes", "of reserved"), tuple(rows), 1, f"{device.segments:,} segments.")
