"""The memory lanes of a page in one file: each device's allocated and reserved memory over time, and its peak."""

from __future__ import annotations

from typing import Any

import numpy as np

from dptrace.analysis.memory.usage import MEMORY, DeviceMemory, MemoryUse, total_bytes
from dptrace.core.intervals import Int64
from dptrace.run.notable_ranks import notable_ranks
from dptrace.run.run import Run
from dptrace.timeline.model import Timeline
from dptrace.viewers.charts.memory_curve import sample_levels
from dptrace.viewers.gantt.chart import Chart
from dptrace.viewers.gantt.column_packing import differences, pack

__all__ = ["MOST_POINTS", "MOST_TRACKS", "memory_lanes", "with_memory"]

MOST_TRACKS = 16
"""GPUs of a page whose memory it holds: the most notable ones, as of the host's rows."""
MOST_POINTS = 4_000
"""Points of a lane; of more events, it has the highest level in each of as many columns."""


def with_memory(run: Run, chart: Chart) -> dict[str, Any]:
    """Return ``memory``, the lanes, as data of the page; nothing where no file has memory events."""
    lanes = memory_lanes(run, chart)
    return {"memory": {"tracks": lanes}} if lanes else {}


def memory_lanes(run: Run, chart: Chart) -> dict[str, dict[str, Any]]:
    """Return the lane of each GPU that has memory events, by its number as text.

    Each has ``delta``, ``bytes`` and ``reserved`` (packed columns: times as differences, sizes as folded differences),
    ``least`` and ``most`` (the ends of its scale), ``peak`` (time and bytes), ``calls`` (times of the runtime's
    allocator calls and of failed allocations), ``exact`` (whether all events are in it) and ``fromStart`` (whether its
    totals count from the start of the recording).
    """
    tracks = [notable.index for notable in notable_ranks(run)] if len(run.timelines) > 1 else [0]
    found = {}
    for track in sorted(tracks[:MOST_TRACKS]):
        timeline = run.timelines[track]
        use = run.read_again(timeline, MEMORY)
        device = _device_of(timeline, use)
        if use is not None and device is not None:
            found[str(track)] = _lane(use, device, chart)
    return found


def _device_of(timeline: Timeline, use: MemoryUse | None) -> DeviceMemory | None:
    return next((device for device in (use.devices if use else ()) if device.device == timeline.device), None)


def _lane(use: MemoryUse, device: DeviceMemory, chart: Chart) -> dict[str, Any]:
    start, end = chart.origin_ns, chart.origin_ns + chart.end_ns
    times, total = device.events.time_ns, total_bytes(device)
    first, last = (int(edge) for edge in np.searchsorted(times, (start, end), side="right"))
    exact = last - first <= MOST_POINTS
    if exact:
        # The level that the chart begins with, and that after each event in it.
        level: Int64 = np.arange(first, last + 1)
        time: Int64 = np.append(start, times[first:last])
    else:
        columns = sample_levels(device, start, end, MOST_POINTS)
        level, time = columns.level, start + columns.edges[:-1].astype(np.int64)
    reserved = np.append(device.events.reserved[:1], device.events.reserved)
    peak = first + int(total[first : last + 1].argmax())
    calls = np.sort(np.append(use.calls.start_ns, use.failed.time_ns)) if not device.on_cpu else np.empty(0, np.int64)
    return {
        "delta": pack(np.diff(time - start, prepend=0)),
        "bytes": pack(differences(total[level])),
        "reserved": pack(differences(reserved[level])),
        "least": min(int(total[level].min()), 0),
        "most": max(int(total[level].max()), int(reserved[level].max()), 1),
        "peak": [max(int(times[max(peak - 1, 0)]) - start, 0), int(total[peak])],
        "calls": (calls[(calls >= start) & (calls < end)] - start).tolist(),
        "exact": exact,
        "fromStart": device.on_cpu,
    }
