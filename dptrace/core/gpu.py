"""What software reports about a GPU: its name, and what distinguishes GPUs of one name."""

from __future__ import annotations

from typing import Any

import msgspec


class GpuProperties(msgspec.Struct, frozen=True):
    """What a trace records of a GPU (``deviceProperties``); 0 where it does not."""

    name: str
    sms: int = 0
    """Streaming multiprocessors, or AMD's compute units."""
    capability: tuple[int, int] = (0, 0)
    warp_size: int = 0
    memory_bytes: int = 0


def properties_of(recorded: Any) -> GpuProperties | None:
    """Read an entry of a trace's ``deviceProperties``; None if it is none."""
    if not isinstance(recorded, dict):
        return None

    def count(key: str) -> int:
        value = recorded.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

    capability = count("computeMajor"), count("computeMinor")
    name = str(recorded.get("name", ""))
    return GpuProperties(name, count("numSms"), capability, count("warpSize"), count("totalGlobalMem"))
