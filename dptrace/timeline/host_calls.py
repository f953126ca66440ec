"""Every call of the threads that launched a device's work, nested; for pages that show what the host did.

::

    thread   ├─ annotations ─────────────────────┤     in a flame of their own
             ├ aten::linear ─────────────┤             depth 0
              ├ aten::addmm ───────────┤               depth 1
                     ├ cudaLaunchKernel ┤              depth 2

Figures do not need them: :mod:`dptrace.timeline.host_events` reduces them to what figures need.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from enum import IntEnum
from functools import cached_property, partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import EMPTY, Int64, first_pair, unique
from dptrace.core.patterns import Patterns
from dptrace.readers.communication import GLOO_PREFIX
from dptrace.readers.formats import read_trace
from dptrace.readers.source import Source
from dptrace.readers.trace import Category, EventDetails, OperatorInputs, Trace
from dptrace.timeline.collectives import enqueuing_operator, last_above, launches
from dptrace.timeline.host_events import ALLOCATOR, DATA_LOADER, SYNCHRONIZING
from dptrace.timeline.model import Timeline

# What a command reads from a rank's file beyond the figures: host calls, operators' shapes, memory events.

Result = TypeVar("Result", bound=Sized)


class SecondPass(msgspec.Struct, Generic[Result], frozen=True):
    """A second reading of a rank's file, for what figures do not need."""

    name: str
    """Names it in the cache."""
    type: type[Result]
    """The class of the result; its length is its number of events."""
    read: Callable[[Source, Patterns], Result]
    """Reads a file, with the user's patterns.

    Raises:
        TraceError: what is wrong with the file.
    """
    most_cached: int = 4_000_000
    """Events of a result that is cached, so that a few files do not fill the cache."""
    of: Callable[[Trace, Source], Result] | None = None
    """Takes the result from what a file's figures are computed from, so that it need not be parsed twice."""
    held: bool = True
    """Whether the result is kept in memory for the next request."""
    if_parsed: bool = False
    """Whether it is prefetched only of files that are parsed in any case."""


def reading(of: Callable[[Trace], Result], **options: bool) -> Callable[[Source, Patterns], Result]:
    """Return what reads a file with these options of ``read_trace``, and takes *of* its trace what is wanted."""
    return partial(_read, of, options)


def _read(of: Callable[[Trace], Result], options: dict[str, Any], source: Source, patterns: Patterns) -> Result:
    from dptrace.timeline.step_marks import with_steps  # few commands read files again

    return of(with_steps(read_trace(source, patterns.comm, **options), patterns.step_range))


class Rereader(Protocol):
    """Reads the files of a run again, one rank at a time."""

    def __call__(self, path: str, reading: SecondPass[Result]) -> Result | None:
        """Return what the file at *path* (``Timeline.path``) holds; None where it can't be read a second time."""


_READS_A_SCALAR = {"aten::_local_scalar_dense", "aten::item"}
"""Operators behind ``tensor.item()``, which wait for the device."""
_MARKS = ("ProfilerStep#", "Optimizer.", *DATA_LOADER)
"""Starts of labels that older torch records as operators."""
_AUTOGRAD = "autograd::engine::evaluate_function"


class CallKind(IntEnum):
    """What a host event is."""

    OPERATOR = 0
    RUNTIME = 1
    """A call of the device's runtime or driver: a launch, a copy."""
    ALLOCATOR = 2
    SYNCHRONIZING = 3
    ANNOTATION = 4
    MODULE = 5
    """The forward of an ``nn.Module``, recorded with ``with_stack=True``."""
    PYTHON = 6
    """Another Python function; only long ones are read."""


class Flame(IntEnum):
    """Events that nest among themselves."""

    CALLS = 0
    LABELS = 1
    """Annotations and modules."""
    PYTHON = 2


_FLAME_OF = np.array([Flame.CALLS] * 4 + [Flame.LABELS] * 2 + [Flame.PYTHON], np.uint8)


class HostCalls(msgspec.Struct, frozen=True):
    """The host events of one rank's launching threads, sorted by thread, flame, start; one entry per event."""

    names: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    """Name of each thread: ``main``, ``autograd``, or the file's id."""
    details: tuple[EventDetails, ...] = ()
    start_ns: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    end_ns: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    name: NDArray[np.int32] = msgspec.field(default_factory=lambda: np.empty(0, np.int32))
    kind: NDArray[np.uint8] = msgspec.field(default_factory=lambda: np.empty(0, np.uint8))
    """:class:`CallKind` values."""
    thread: NDArray[np.int32] = msgspec.field(default_factory=lambda: np.empty(0, np.int32))
    """Index into ``threads``."""
    depth: NDArray[np.int32] = msgspec.field(default_factory=lambda: np.empty(0, np.int32))
    """Number of events of the same thread and flame around it."""
    parent: NDArray[np.int32] = msgspec.field(default_factory=lambda: np.empty(0, np.int32))
    """Index of the innermost of these, or -1."""
    detail: NDArray[np.int32] = msgspec.field(default_factory=lambda: np.empty(0, np.int32))
    """Index into ``details``."""
    device_start_ns: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    """Start of each interval on a device, ascending; on a CPU, of each operator and collective."""
    device_lane: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    """Its stream or thread, as in a timeline."""
    device_call: NDArray[np.int32] = msgspec.field(default_factory=lambda: np.empty(0, np.int32))
    """Index of the call that launched it, or -1."""
    device_detail: NDArray[np.int32] = msgspec.field(default_factory=lambda: np.empty(0, np.int32))
    device_correlation: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    """The id that links it to its launch; -1 without one."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def flame(self) -> NDArray[np.uint8]:
        """The :class:`Flame` of each event."""
        return _FLAME_OF[self.kind]

    def device_index(self, timeline: Timeline) -> Int64:
        """Return for each interval of a timeline its place in the columns ``device_…``, or -1."""
        # The first of equal ones: on a CPU, the outermost operator.
        return first_pair((self.device_start_ns, self.device_lane), (timeline.start_ns, timeline.lane))


def host_calls(trace: Trace) -> HostCalls:
    """Collect the calls of the threads that launched work or run the loop; *trace* was read with details."""
    return indexed_host_calls(trace)[0]


def indexed_host_calls(trace: Trace) -> tuple[HostCalls, Int64]:
    """Collect these calls; also return the index of each in *trace*."""
    device, launch = _device_events(trace)
    kind = _kinds(trace, on_device=bool((trace.category >= Category.KERNEL).any()))
    marks = trace.named("ProfilerStep#") & (trace.category <= Category.ANNOTATION)
    threads = unique(np.append(trace.thread[launch[launch >= 0]], trace.thread[marks]))
    host = np.flatnonzero((trace.category <= Category.LAUNCH) & np.isin(trace.thread, threads))
    thread = np.searchsorted(threads, trace.thread[host])
    group = thread * len(Flame) + _FLAME_OF[kind[host]]
    order = np.argsort(group, kind="stable")  # those of a group stay sorted by start, longer ones first
    host, thread, group = host[order], thread[order], group[order]
    depth, parent = nesting(trace.start_ns[host], trace.end_ns[host], group)
    place = np.full(len(trace), -1, np.int32)
    place[host] = np.arange(len(host), dtype=np.int32)
    detail = trace.detail if len(trace.detail) else np.zeros(len(trace), np.int32)
    calls = HostCalls(
        names=trace.names,
        threads=_thread_names(trace, threads, marks),
        details=trace.details or (EventDetails(),),
        start_ns=trace.start_ns[host],
        end_ns=trace.end_ns[host],
        name=trace.name[host],
        kind=kind[host],
        thread=thread.astype(np.int32),
        depth=depth,
        parent=parent,
        detail=detail[host],
        device_start_ns=trace.start_ns[device],
        device_lane=_lanes(trace, device),
        device_call=np.where(launch >= 0, place[launch], -1).astype(np.int32),
        device_detail=detail[device],
        device_correlation=trace.correlation[device],
    )
    return calls, host


HOST_CALLS = SecondPass("host calls", HostCalls, reading(host_calls, detailed=True))
"""Reads the host calls of a rank's file."""


def _device_events(trace: Trace) -> tuple[Int64, Int64]:
    """Return the events that a timeline may hold, ascending, and the call that launched each, or -1."""
    device = np.flatnonzero(trace.category >= Category.KERNEL)
    if len(device):
        return device, launches(trace, device)
    comm = np.flatnonzero((trace.category == Category.ANNOTATION) & trace.named(GLOO_PREFIX))
    events = np.sort(np.append(np.flatnonzero(trace.category == Category.CPU_OP), comm))
    launch = events.copy()
    operator = enqueuing_operator(trace, comm)
    launch[np.searchsorted(events, comm)] = np.where(operator == comm, -1, operator)
    return events, launch


def _lanes(trace: Trace, events: Int64) -> Int64:
    on_device = trace.category[events] >= Category.KERNEL
    return np.where(on_device, trace.stream[events], trace.thread[events]).astype(np.int64)


def _kinds(trace: Trace, on_device: bool) -> NDArray[np.uint8]:
    kind = np.full(len(trace), CallKind.OPERATOR, np.uint8)
    launch, op, python = (trace.category == c for c in (Category.LAUNCH, Category.CPU_OP, Category.PYTHON))
    kind[launch] = CallKind.RUNTIME
    kind[launch & trace.matching(SYNCHRONIZING.match)] = CallKind.SYNCHRONIZING
    kind[launch & trace.matching(ALLOCATOR.match)] = CallKind.ALLOCATOR
    if on_device:
        kind[op & trace.matching(_READS_A_SCALAR.__contains__)] = CallKind.SYNCHRONIZING
    kind[(trace.category == Category.ANNOTATION) | (op & trace.named(*_MARKS))] = CallKind.ANNOTATION
    kind[python] = CallKind.PYTHON
    kind[python & trace.named("nn.Module: ")] = CallKind.MODULE
    return kind


def _thread_names(trace: Trace, threads: NDArray[np.int32], marks: NDArray[np.bool_]) -> tuple[str, ...]:
    """Name the thread of the training loop and that of autograd's engine; others have the file's id."""
    names = {int(thread): trace.threads[thread] if trace.threads else str(thread) for thread in threads}
    engine = trace.thread[trace.named(_AUTOGRAD) & (trace.category == Category.CPU_OP)]
    if len(engine) and (most := int(np.bincount(engine).argmax())) in names:
        names[most] = "autograd"
    if marks.any():
        names[int(trace.thread[marks][0])] = "main"
    return tuple(names.values())


def nesting(start: Int64, end: Int64, group: Int64) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the depth of each event, and the index of the event around it, or -1.

    The event around one is the last before it in its group that ends after its start. So no two events of a depth run
    at the same time, even where events overlap partly (pytorch#174555).

    Args:
        start, end, group: sorted by group, then start, then longer events first.
    """
    if not len(start):
        return np.empty(0, np.int32), np.empty(0, np.int32)
    depth, parent = _proper_nesting(start, end, group)
    inside = parent >= 0
    if (end[parent[inside]] < end[inside]).any():
        depth, parent = _any_nesting(start, end, group)
    return depth.astype(np.int32), parent.astype(np.int32)


def _proper_nesting(start: Int64, end: Int64, group: Int64) -> tuple[Int64, Int64]:
    """Do this for events that end no later than the one around them, in half the time; else a parent ends too early."""
    # The depth is the number of events that run: those begun less those ended. Empty ones enclose nothing.
    lasting = end > start
    begun: Int64 = np.cumsum(lasting) - lasting
    times, time = np.unique(np.append(end[lasting], start), return_inverse=True)
    count = int(lasting.sum())
    ended = np.sort(group[lasting] * len(times) + time[:count])
    depth = begun - np.searchsorted(ended, group * len(times) + time[count:], side="right")
    order = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[order], np.arange(int(depth.max()) + 2))
    parent = np.full(len(start), -1, np.int64)
    above = order[edges[0] : edges[1]]
    for level in range(1, len(edges) - 1):
        own = order[edges[level] : edges[level + 1]]
        above = above[lasting[above]]
        parent[own] = above[np.searchsorted(above, own) - 1]
        above = own
    return depth, parent


def _any_nesting(start: Int64, end: Int64, group: Int64) -> tuple[Int64, Int64]:
    """Do this for events that may overlap partly."""
    count = len(start)
    first = np.searchsorted(group, group, side="left")
    around = last_above(end, np.arange(count) - 1, start)
    nested = (around < np.arange(count)) & (around >= first) & (end[around] > start)
    parent = np.where(nested, around, -1)
    # Each round doubles the number of ancestors that are counted.
    depth, above = nested.astype(np.int64), parent.copy()
    while len(open_ := np.flatnonzero(above >= 0)):
        further = above[open_]
        depth[open_], above[open_] = depth[open_] + depth[further], above[further]
    return depth, parent


# The host calls of a rank with what ties them to compute: inputs of operators, and the numbers of autograd's nodes.

_NO_INT32 = np.empty(0, np.int32)


class OperatorCalls(msgspec.Struct, frozen=True, dict=True):
    """Host calls, and for each of them what only operators have; one entry per call in each column."""

    calls: HostCalls = HostCalls()
    inputs: NDArray[np.int32] = msgspec.field(default_factory=lambda: _NO_INT32)
    """Index into ``table``; -1 for calls that are no operators."""
    table: tuple[OperatorInputs, ...] = ()
    sequence: Int64 = msgspec.field(default_factory=lambda: EMPTY[0])
    """Autograd's number of the node that the operator creates or runs; -1 without one."""
    forward_thread: NDArray[np.int32] = msgspec.field(default_factory=lambda: _NO_INT32)
    """Autograd's number of the thread that created the node, in backward; 0 elsewhere."""

    def __len__(self) -> int:
        return len(self.calls)

    @cached_property
    def attributed(self) -> dict[int, tuple[Timeline, Any]]:
        """What timelines' intervals belong to among these calls, by the timeline's identity, once it is known."""
        return {}

    @cached_property
    def is_operator(self) -> NDArray[np.bool_]:
        """Which calls are operators; labels that older torch records as operators are not."""
        operators: NDArray[np.bool_] = (self.inputs >= 0) & (self.calls.flame == Flame.CALLS)
        return operators


def operator_calls(trace: Trace) -> OperatorCalls:
    """Collect the calls of a trace that was read with operators."""
    assert trace.operators is not None
    calls, event = indexed_host_calls(trace)
    recorded = trace.operators
    return OperatorCalls(
        calls, recorded.inputs[event], recorded.table, recorded.sequence[event], recorded.forward_thread[event]
    )


OPERATOR_CALLS = SecondPass("operator calls", OperatorCalls, reading(operator_calls, operators=True))
"""Reads the operator calls of a rank's file."""
