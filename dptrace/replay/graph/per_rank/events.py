"""What a replay needs from a rank's file beyond its timelines: every host call, and what launched what."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, mask_of, unique
from dptrace.readers.communication import C10D_PREFIX, GLOO_PREFIX
from dptrace.readers.source import Source
from dptrace.readers.trace import Category, Trace
from dptrace.replay.graph.per_rank.sync_events import SyncEvents, read_sync_events
from dptrace.timeline.collectives import enqueuing_operator, last_enclosing, launches, outermost
from dptrace.timeline.host_calls import SecondPass
from dptrace.timeline.steps import cpu_steps

__all__ = ["NO_CALL", "RANK_EVENTS", "WAIT_CALL", "RankEvents", "rank_events"]

NO_CALL = -1
"""Launch of an interval whose launching call is not in the file."""
WAIT_CALL = re.compile(r"(cuda|hip|cu)StreamWaitEvent(_ptsz)?$")
"""Calls that let a stream wait for another."""
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
    syncs: SyncEvents = SyncEvents()
    """Synchronizations, where they are recorded."""

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
    )


def _calls(trace: Trace, launch: Int64) -> Int64:
    """Return the calls of the runtime that matter: not a polling thread's, nor those within another call."""
    calls = np.flatnonzero(trace.category == Category.LAUNCH)
    polling = np.fromiter((bool(_POLLING.match(name)) for name in trace.names), np.bool_, len(trace.names))
    busy = unique(trace.thread[calls[~polling[trace.name[calls]]]])
    calls = calls[np.isin(trace.thread[calls], busy)]
    kept = mask_of(outermost(trace, calls), len(trace)) | mask_of(launch, len(trace))
    chosen: Int64 = calls[kept[calls]]
    return chosen


def _gloo(trace: Trace) -> tuple[Int64, Int64, Int64]:
    """Return gloo's collectives, the operator that requested each or -1, and all these operators, ascending."""
    comm = np.flatnonzero((trace.category == Category.ANNOTATION) & trace.named(GLOO_PREFIX))
    operator = enqueuing_operator(trace, comm)
    launch = np.where(operator == comm, NO_CALL, operator)
    return comm, launch, unique(launch[launch >= 0])


def _read(source: Source, patterns: Sequence[str]) -> RankEvents:
    # Few commands read a file again.
    from dptrace.readers.kineto.reader import read_trace

    events = rank_events(read_trace(source, comm_patterns=patterns))
    waits = any(WAIT_CALL.match(name) for name in events.names)
    return replace(events, syncs=read_sync_events(source)) if waits else events


RANK_EVENTS = SecondPass("replayed events", RankEvents, _read)
"""Reads the events of a rank's file."""
