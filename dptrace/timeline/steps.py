"""Where steps start and end: on the CPU by the profiler's marks, on each device by what was launched.

Also the selection of steps of a timeline, whose figures do not change.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.readers.trace import Category, Trace
from dptrace.timeline.model import AFTER_LAST, BEFORE_FIRST, Timeline, Windows

__all__ = ["WHOLE_TRACE", "CpuSteps", "cpu_steps", "device_windows", "select_steps", "select_steps_with_mask"]

WHOLE_TRACE = "whole trace"
"""Name of the only window of a trace without step marks."""


class CpuSteps(msgspec.Struct, frozen=True):
    """The steps on the CPU; empty if the trace has no marks."""

    names: tuple[str, ...]
    start_ns: Int64
    end_ns: int
    """End of the last step's mark."""

    def __len__(self) -> int:
        return len(self.names)

    def index_at(self, times: Int64) -> NDArray[np.int32]:
        """Return the step of each time; BEFORE_FIRST or AFTER_LAST outside all steps."""
        if not len(self):
            return np.zeros(len(times), np.int32)
        step = np.searchsorted(self.start_ns, times, side="right") - 1
        return np.where(times >= self.end_ns, AFTER_LAST, np.where(step < 0, BEFORE_FIRST, step)).astype(np.int32)


def cpu_steps(trace: Trace) -> CpuSteps:
    """Find the ``ProfilerStep#k`` marks on the CPU; their copies on a GPU follow other clocks and are not used."""
    on_cpu = (trace.category == Category.ANNOTATION) | (trace.category == Category.CPU_OP)
    marks = np.flatnonzero(on_cpu & trace.named("ProfilerStep#"))
    # A profiler started twice in one process marks a step on two threads: the first to start counts.
    _, first = np.unique(trace.name[marks], return_index=True)
    marks = marks[np.sort(first)]
    names = tuple(trace.names[i] for i in trace.name[marks])
    end = int(trace.end_ns[marks].max()) if len(marks) else 0
    return CpuSteps(names, trace.start_ns[marks], end)


def device_windows(cpu: CpuSteps, start: Int64, end: Int64, step: NDArray[np.int32]) -> Windows:
    """Divide one device's time into steps, without gap or overlap.

    Window k starts at b_k = min(first start of k's intervals, max(CPU start of k, last end of what was launched
    before k)), never before b_{k-1}; the last ends at max(CPU end of the last step, last end of its intervals).
    So work that runs behind the CPU counts for the step that launched it.

    Args:
        cpu: the steps on the CPU; without any, the whole trace is one window.
        start, end: the device's intervals in ns, in any order.
        step: the step that launched each.
    """
    if not len(cpu):
        return Windows((WHOLE_TRACE,), np.array([start.min(), end.max()], np.int64))
    count = len(cpu)
    never = np.iinfo(np.int64)
    first = np.full(count, never.max, np.int64)
    last = np.full(count + 1, never.min, np.int64)
    inside = step >= 0
    np.minimum.at(first, step[inside], start[inside])
    known = step != AFTER_LAST
    np.maximum.at(last, step[known] + 1, end[known])
    before = np.maximum.accumulate(last)[:-1]
    bounds = np.maximum.accumulate(np.minimum(first, np.maximum(cpu.start_ns, before)))
    final = max(cpu.end_ns, int(last[-1]), int(bounds[-1]))
    return Windows(cpu.names, np.append(bounds, final))


def select_steps(timeline: Timeline, low: int, high: int) -> Timeline:
    """Keep the steps from index *low* to *high*, inclusive, and the intervals that affect them.

    These are the steps' own intervals, and any that overlap the steps or their intervals: a collective that runs into
    the next step may be overlapped by that step's compute.
    """
    return select_steps_with_mask(timeline, low, high)[0]


def select_steps_with_mask(timeline: Timeline, low: int, high: int) -> tuple[Timeline, NDArray[np.bool_]]:
    """Select as :func:`select_steps` does; also return a mask of the kept intervals."""
    windows = Windows(timeline.windows.names[low : high + 1], timeline.windows.bounds[low : high + 2])
    step = timeline.step
    moved = np.where(step > high, AFTER_LAST, np.where((step >= 0) & (step < low), BEFORE_FIRST, step))
    moved = np.where(moved >= 0, moved - low, moved).astype(np.int32)
    own = moved >= 0
    begin = min([int(windows.bounds[0]), *timeline.start_ns[own][:1].tolist()])
    end = max(int(windows.bounds[-1]), int(timeline.end_ns[own].max(initial=windows.bounds[-1])))
    chosen = own | ((timeline.start_ns < end) & (timeline.end_ns > begin))
    actions = timeline.actions.filter((timeline.actions.step >= low) & (timeline.actions.step <= high))
    actions = replace(actions, step=(actions.step - low).astype(np.int32))
    host = replace(timeline.host, step_ns=timeline.host.step_ns[low : high + 1])
    return replace(timeline, windows=windows, step=moved, actions=actions, host=host).filter(chosen), chosen
