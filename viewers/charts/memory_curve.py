"""A device's memory reduced to columns of a picture, so that each column shows the highest level within it."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.memory.usage import DeviceMemory, MemoryKind, total_bytes
from dptrace.analysis.per_gpu.split import Part
from dptrace.core.intervals import Int64
from dptrace.run.memory import DeviceReport
from dptrace.viewers.base import theme

__all__ = ["KIND_COLORS", "STACK", "SampledLevels", "sample_levels", "span_of"]

KIND_COLORS = {
    MemoryKind.PREEXISTING: theme.PART_COLORS[Part.OTHER],
    MemoryKind.OPTIMIZER_STATE: theme.PART_COLORS[Part.OPTIMIZER],
    MemoryKind.GRADIENT: theme.PART_COLORS[Part.BACKWARD],
    MemoryKind.ACTIVATION: theme.PART_COLORS[Part.FORWARD],
    MemoryKind.COMMUNICATION: theme.OVERLAPPED,
    MemoryKind.TEMPORARY: theme.CAUSE_COLORS["bubble_ns"],
    MemoryKind.OTHER: theme.WAITING,
}
STACK = tuple(KIND_COLORS)
"""The kinds from the bottom up: what lives longest below."""


class SampledLevels(msgspec.Struct, frozen=True):
    """Columns of equal width from left to right."""

    edges: NDArray[np.float64]
    """Where each begins and the last ends, in ns; one more than there are columns."""
    level: Int64
    """The highest level in each column."""


def span_of(report: DeviceReport) -> tuple[int, int]:
    """Return when the selected steps begin and end, in ns."""
    times, levels, bounds = report.device.events.time_ns, report.levels, report.use.step_ns
    first, last = int(times[max(int(levels[0]) - 1, 0)]), int(times[max(int(levels[-1]) - 1, 0)])
    if len(bounds) == len(report.use.steps) + 1:
        chosen = np.flatnonzero(report.steps) if report.steps is not None else np.arange(len(report.use.steps))
        first, last = min(first, int(bounds[chosen[0]])), max(last, int(bounds[chosen[-1] + 1]))
    return first, max(last, first + 1)


def sample_levels(device: DeviceMemory, start_ns: int, end_ns: int, columns: int) -> SampledLevels:
    """Return the highest level in each column of a stretch of time."""
    times, total = device.events.time_ns, total_bytes(device)
    edges = start_ns + (end_ns - start_ns) * np.arange(columns + 1) / columns
    whole = np.floor(edges).astype(np.int64)
    # A column has the level that it begins with, and those after the events within it.
    first = np.searchsorted(times, whole[:-1], side="right").tolist()
    last = np.searchsorted(times, whole[1:], side="left").tolist()
    level = [a + int(total[a : max(a, b) + 1].argmax()) for a, b in zip(first, last, strict=True)]
    return SampledLevels(edges - start_ns, np.array(level, np.int64))
