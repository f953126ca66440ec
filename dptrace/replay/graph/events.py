"""What a replay needs from a rank's file beyond its timelines: every host call, and what launched what."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.columns import Columns
from dptrace.core.intervals import EMPTY, Int64, mask_of, unique
from dptrace.core.patterns import Patterns
from dptrace.readers.communication import C10D_PREFIX, GLOO_PREFIX
from dptrace.readers.formats import is_database, read_trace
from dptrace.readers.joined_trace import apart
from dptrace.readers.kineto.columns import EventSink
from dptrace.readers.kineto.event_schema import SYNCHRONIZATION, as_count
from dptrace.readers.source import Source
from dptrace.readers.trace import Category, Trace
from dptrace.replay.graph.model import TaskKind
from dptrace.timeline.collectives import enqueuing_operator, last_enclosing, launches, outermost
from dptrace.timeline.host_calls import SecondPass
from dptrace.timeline.launch_calls import WAIT_CALL
from dptrace.timeline.steps import cpu_steps

# Recorded synchronizations: which stream a call lets wait for which, where CUPTI was asked to say so.
#
# torch.profiler writes them with ``_ExperimentalConfig(enable_cuda_sync_events=True)``. Figures do not need them, so
# they are read in a separate pass.


NOT_RECORDED = -1
_NONE = EMPTY[0]


class SyncEvents(Columns, frozen=True):
    """The synchronizations of one file; one entry per event in each column."""

    correlation: Int64
    """Id of the call that made it."""
    device: Int64
    stream: Int64
    """The stream that waits, or that the host waits for; NOT_RECORDED without one."""
    wait_on_stream: Int64
    """The stream that it waits for, or NOT_RECORDED."""
    record: Int64
    """Id of the call that recorded the event, or NOT_RECORDED."""


class _Args(msgspec.Struct, frozen=True, gc=False):
    # Of any type: an odd argument counts as absent.
    correlation: Any = None
    device: Any = None
    stream: Any = None
    wait_on_stream: Any = None
    wait_on_cuda_event_record_corr_id: Any = None


class _Event(msgspec.Struct, frozen=True, gc=False):
    cat: Any = None
    args: _Args | None = None


_EVENTS = msgspec.json.Decoder(list[_Event])


class _SyncColumns(EventSink):
    """Collects the synchronizations of a file; text without any is not decoded."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []

    def decode(self, text: bytes) -> None:
        if SYNCHRONIZATION.encode() not in text:
            return
        for event in _EVENTS.decode(text):
            if event.cat == SYNCHRONIZATION and event.args is not None:
                numbers = (as_count(getattr(event.args, name)) for name in _Args.__struct_fields__)
                self.rows.append(tuple(NOT_RECORDED if number is None else number for number in numbers))


def read_sync_events(source: Source) -> SyncEvents:
    """Read the recorded synchronizations of a file; none in most."""
    if source.windows:
        parts = [read_sync_events(one) for one in source.windows]
        ids = ("correlation", "record")
        return SyncEvents.concat(
            [replace(one, **{id: apart(getattr(one, id), n) for id in ids}) for n, one in enumerate(parts)]
        )
    # Few commands read a file again.
    from dptrace.readers.kineto.reader import read_into
    from dptrace.readers.nsight import read_syncs

    if is_database(source):
        return SyncEvents(*read_syncs(source).T.copy())
    columns = _SyncColumns()
    read_into(source, columns)
    return SyncEvents(*np.array(columns.rows, np.int64).reshape(-1, len(_Args.__struct_fields__)).T.copy())


NO_CALL = -1
"""Launch of an interval whose launching call is not in the file."""
_POLLING = re.compile(r"(cuda|hip)EventQuery$")
"""The calls of NCCL's watchdog, whose thread nothing waits for."""


class RankEvents(msgspec.Struct, frozen=True):
    """The host calls of a rank, sorted by start, and its device intervals, sorted by start."""

    names: tuple[str, ...]
    on_cpu: bool
    """Whether the device intervals are gloo's collectives, and the calls the operators that request them."""
    call_start_ns: Int64
    call_end_ns: Int64
    call_thread: NDArray[np.int32]
    call_name: NDArray[np.int32]
    """Index into ``names``, as are all columns of names."""
    call_correlation: Int64
    """Links it to what it launched or recorded; -1 without."""
    call_operator: NDArray[np.int32]
    """Name of the outermost operator around each call, or -1."""
    call_in_nccl: NDArray[np.bool_]
    """Whether a label of ProcessGroupNCCL (``nccl:all_reduce``) is around it."""
    call_request: Int64
    """Number of the ``c10d::`` operator around it, or -1."""
    start_ns: Int64
    end_ns: Int64
    device: NDArray[np.int32]
    stream: Int64
    """Stream of a device, or thread of a CPU."""
    name: NDArray[np.int32]
    memory: NDArray[np.bool_]
    """Whether it is a copy or a set."""
    launch: Int64
    """Index of the call that launched it, or NO_CALL."""
    step_names: tuple[str, ...]
    step_start_ns: Int64
    step_end_ns: int
    """End of the last step's mark."""
    step_thread: int
    syncs: SyncEvents = SyncEvents.empty()
    """Synchronizations, where they are recorded."""
    later_ns: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    """First time of each window after the first, where there are several."""

    def __len__(self) -> int:
        return len(self.call_start_ns) + len(self.start_ns)


def rank_events(trace: Trace) -> RankEvents:
    """Collect the calls and intervals of a rank's trace."""
    device = np.flatnonzero(trace.category >= Category.KERNEL)
    on_cpu = not len(device)
    if on_cpu:
        device, launch, calls = _gloo(trace)
    else:
        launch = launches(trace, device)
        calls = _calls(trace, launch)
    place = np.full(len(trace) + 1, NO_CALL, np.int64)
    place[calls] = np.arange(len(calls))
    start, thread = trace.start_ns[calls], trace.thread[calls]
    operators = outermost(trace, np.flatnonzero(trace.category == Category.CPU_OP))
    operator = last_enclosing(trace, mask_of(operators, len(trace)), thread, start)
    labels = trace.category <= Category.ANNOTATION
    steps = cpu_steps(trace)
    marks = np.flatnonzero(trace.named("ProfilerStep#") & labels)
    return RankEvents(
        names=trace.names,
        on_cpu=on_cpu,
        call_start_ns=start,
        call_end_ns=trace.end_ns[calls],
        call_thread=thread,
        call_name=trace.name[calls],
        call_correlation=trace.correlation[calls],
        call_operator=np.where(operator >= 0, trace.name[operator], -1).astype(np.int32),
        call_in_nccl=last_enclosing(trace, trace.named("nccl:") & labels, thread, start) >= 0,
        call_request=last_enclosing(trace, trace.named(C10D_PREFIX) & labels, thread, start),
        start_ns=trace.start_ns[device],
        end_ns=trace.end_ns[device],
        device=np.maximum(trace.device[device], 0),
        stream=trace.thread[device].astype(np.int64) if on_cpu else trace.stream[device],
        name=trace.name[device],
        memory=trace.category[device] == Category.MEMORY,
        launch=place[launch],
        step_names=steps.names,
        step_start_ns=steps.start_ns,
        step_end_ns=steps.end_ns,
        step_thread=int(trace.thread[marks[0]]) if len(marks) else -1,
        later_ns=np.array(trace.later_ns, np.int64),
    )


def _calls(trace: Trace, launch: Int64) -> Int64:
    """Return the calls of the runtime that matter: not a polling thread's, nor those within another call."""
    calls = np.flatnonzero(trace.category == Category.LAUNCH)
    polling = np.fromiter((bool(_POLLING.match(name)) for name in trace.names), np.bool_, len(trace.names))
    busy = unique(trace.thread[calls[~polling[trace.name[calls]]]])
    calls = calls[np.isin(trace.thread[calls], busy)]
    kept = mask_of(outermost(trace, calls), len(trace)) | mask_of(launch, len(trace))
    return calls[kept[calls]]


def _gloo(trace: Trace) -> tuple[Int64, Int64, Int64]:
    """Return gloo's collectives, the operator that requested each or -1, and all these operators, ascending."""
    comm = np.flatnonzero((trace.category == Category.ANNOTATION) & trace.named(GLOO_PREFIX))
    operator = enqueuing_operator(trace, comm)
    launch = np.where(operator == comm, NO_CALL, operator)
    return comm, launch, unique(launch[launch >= 0])


def _read(source: Source, patterns: Patterns) -> RankEvents:
    # Few commands read a file again.
    from dptrace.timeline.step_marks import with_steps

    return _with_syncs(with_steps(read_trace(source, patterns.comm), patterns.step_range), source)


def _with_syncs(trace: Trace, source: Source) -> RankEvents:
    events = rank_events(trace)
    waits = trace.has_syncs and any(WAIT_CALL.match(name) for name in events.names)
    return replace(events, syncs=read_sync_events(source)) if waits else events


RANK_EVENTS = SecondPass("replayed events", RankEvents, _read, of=_with_syncs, held=False)
"""Reads the events of a rank's file."""


# The host side of one process in order of start: its calls, the marks of its steps, and operators that compute.


class Operators(Columns, frozen=True):
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
