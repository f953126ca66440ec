"""The host side of one process in order of start: its calls, the marks of its steps, and operators that compute."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.replay.graph.model import TaskKind
from dptrace.replay.graph.per_rank.events import RankEvents

__all__ = ["HostEvents", "Operators", "host_events", "previous_in_group"]


class Operators(msgspec.Struct, frozen=True):
    """The operators that compute on a CPU, in any order; empty for a process with a GPU."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    name: NDArray[np.int32]
    """Index into the names of the process."""


class HostEvents(msgspec.Struct, frozen=True):
    """The host events of one process, sorted by start, longer ones first; one entry per event in each column."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    name: NDArray[np.int32]
    operator: NDArray[np.int32]
    kind: NDArray[np.uint8]
    """CALL, MARK or COMPUTE."""
    of_call: Int64
    """Index of the event of each call of the process; the last entry is -1, for no call."""
    of_operator: Int64
    """Index of the event of each operator."""
    marks: Int64
    """Index of the event of each step's mark, and of the end of the last; empty without marks."""

    def __len__(self) -> int:
        return len(self.start_ns)


def host_events(events: RankEvents, operators: Operators) -> HostEvents:
    """Sort the calls, marks and operators of a process by start; names of marks continue those of the process."""
    calls, steps, ops = len(events.call_start_ns), len(events.step_start_ns), len(operators.start_ns)
    marks = steps + bool(steps)
    times = np.append(events.step_start_ns, events.step_end_ns)[:marks]
    start = np.concatenate((events.call_start_ns, times, operators.start_ns))
    end = np.concatenate((events.call_end_ns, times, operators.end_ns))
    thread = np.concatenate((events.call_thread, np.full(marks, events.step_thread), operators.thread))
    first = len(events.names)
    name = np.concatenate((events.call_name, np.arange(first, first + marks), operators.name))
    kinds = np.repeat(np.array([TaskKind.CALL, TaskKind.MARK, TaskKind.COMPUTE], np.uint8), [calls, marks, ops])
    # A mark comes before what starts with it: all of the step is after it.
    order = np.lexsort((-end, kinds != TaskKind.MARK, start))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return HostEvents(
        start_ns=start[order],
        end_ns=end[order],
        thread=thread[order].astype(np.int64),
        name=name[order].astype(np.int32),
        operator=np.concatenate((events.call_operator, np.full(marks, -1), operators.name))[order].astype(np.int32),
        kind=kinds[order],
        of_call=np.append(place[:calls], -1),
        of_operator=place[calls + marks :],
        marks=place[calls : calls + marks],
    )


def previous_in_group(group: Int64) -> Int64:
    """Return for each entry the index of the last entry before it with its value, or -1."""
    order = np.argsort(group, kind="stable")
    previous = np.full(len(group), -1, np.int64)
    same = group[order[1:]] == group[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous
