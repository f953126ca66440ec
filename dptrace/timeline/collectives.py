"""Launches, and collectives: which call started a kernel, and what a communication kernel is part of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from functools import partial
from itertools import pairwise

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, mask_of
from dptrace.readers.communication import C10D_PREFIX, CALLERS, kind_of, synchronizes
from dptrace.readers.kineto.columns import MAX_BYTES
from dptrace.readers.trace import Category, CommArgs, Trace
from dptrace.timeline.model import Collective

# From a device interval to the call that launched it, and to the events that enclose that call.


def launches(trace: Trace, events: Int64) -> Int64:
    """Return for each of the device *events* the index of the call that launched it, -1 where the file has none.

    Runtime and driver calls of any name count (cudaLaunchKernel, its ExC form, cuLaunchKernelEx, HIP's, graph
    launches); the correlation id links them. A graph launch has many kernels. If several calls share an id (ids wrap
    at 2^32, and each process has its own), the last to start before the event counts.
    """
    if len(trace.launch):
        return trace.launch[events]
    calls = np.flatnonzero((trace.category == Category.LAUNCH) & (trace.correlation > 0))
    if not len(calls):
        return np.full(len(events), -1, np.int64)
    calls = _outer(trace, calls[np.argsort(trace.correlation[calls], kind="stable")])
    ids = trace.correlation[calls]
    wanted = trace.correlation[events]
    place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    if (ids[1:] == ids[:-1]).any():
        # The first call with the id counts even if, by the clocks, it started after the event.
        times = np.append(trace.start_ns[calls], trace.start_ns[events])
        place = np.maximum(place, _last_place(np.append(ids, wanted), times, len(ids)))
    return np.where((ids[place] == wanted) & (wanted > 0), calls[place], -1)


def _outer(trace: Trace, calls: Int64) -> Int64:
    """Drop calls inside another with the same id: the driver's inside the runtime's. *calls* are sorted by id."""
    inner = trace.correlation[calls[1:]] == trace.correlation[calls[:-1]]
    if not inner.any():
        return calls
    inner &= trace.thread[calls[1:]] == trace.thread[calls[:-1]]
    inner &= trace.end_ns[calls[1:]] <= trace.end_ns[calls[:-1]]
    outer: Int64 = calls[~np.append(False, inner)]
    return outer


def _last_place(group: NDArray[np.int64], time: Int64, count: int) -> Int64:
    """Return for each entry from *count* on the last of the first *count* (sorted) not beyond it, by group and time."""
    order = np.lexsort((np.arange(len(time)) >= count, time, group))
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(order < count) - 1
    return place[count:]


def outermost(trace: Trace, events: Int64) -> Int64:
    """Keep the *events* (indices, ascending) that no earlier event on their thread contains."""
    order = events[np.argsort(trace.thread[events], kind="stable")]
    if not len(order):
        return order
    first, reach = _reach(trace.thread[order], trace.end_ns[order])
    first[1:] |= reach[1:] > reach[:-1]
    return np.sort(order[first])


def _reach(thread: NDArray[np.int32], end: Int64) -> tuple[NDArray[np.bool_], Int64]:
    """Return of events sorted by thread which are the first of theirs, and the latest end up to each on its thread."""
    first, reach = np.append(True, thread[1:] != thread[:-1]), np.empty_like(end)
    for low, high in pairwise([*np.flatnonzero(first).tolist(), len(end)]):
        np.maximum.accumulate(end[low:high], out=reach[low:high])
    return first, reach


def holding(trace: Trace, events: Int64, inner: Int64, ended: Int64) -> NDArray[np.bool_]:
    """Return for each of *events* whether a request of *inner* starts within it and its work ends within it.

    Args:
        events: indices.
        inner: indices of events that request work; they count for events on their own thread.
        ended: end of each request's work in ns.
    """
    if not len(inner) or not len(events):
        return np.zeros(len(events), np.bool_)
    _, thread = np.unique(np.append(trace.thread[inner], trace.thread[events]), return_inverse=True)
    times = np.concatenate((trace.start_ns[inner], trace.start_ns[events], trace.end_ns[events]))
    known, rank = np.unique(times, return_inverse=True)
    place = np.concatenate((thread, thread[len(inner) :])) * len(known) + rank
    order = np.argsort(place[: len(inner)], kind="stable")
    first, last = np.searchsorted(place[order], place[len(inner) :]).reshape(2, -1)
    # The earliest end of those within; one entry beyond all for reduceat, which returns it where there is none.
    ends = np.append(ended[order], np.iinfo(np.int64).max)
    earliest = np.minimum.reduceat(ends, np.stack((first, np.maximum(first, last)), axis=1).reshape(-1))[::2]
    return (last > first) & (earliest <= trace.end_ns[events])


def last_enclosing(trace: Trace, mask: NDArray[np.bool_], thread: NDArray[np.int32], time: Int64) -> Int64:
    """Return for each (thread, time) the index of the last event of *mask* to start that encloses it, or -1.

    An event encloses its start and its end: traces rounded to microseconds let a call begin when its event ends. Where
    one event ends as the next starts, the next counts. Events may overlap partly (pytorch#174555); where they nest,
    the last to start is the innermost. The cost does not depend on the depth: see :func:`last_above`.
    """
    events = np.flatnonzero(mask)
    if not len(events) or not len(time):
        return np.full(len(time), -1, np.int64)
    events = events[np.argsort(trace.thread[events], kind="stable")]
    group = np.append(trace.thread[events], thread).astype(np.int64)
    place = _last_place(group, np.append(trace.start_ns[events], time), len(events))
    _, reach = _reach(trace.thread[events], trace.end_ns[events])
    # Where none of its thread has begun, the last of another is the one before: which ends at any time.
    wanted = np.flatnonzero((place >= 0) & (reach[place] >= time))
    thread, time = thread[wanted], time[wanted]
    candidate = events[last_above(trace.end_ns[events], place[wanted], time - 1)]
    encloses = (
        (trace.thread[candidate] == thread) & (trace.start_ns[candidate] <= time) & (time <= trace.end_ns[candidate])
    )
    found = np.full(len(place), -1, np.int64)
    found[wanted] = np.where(encloses, candidate, -1)
    return found


def last_above(values: Int64, place: Int64, limit: Int64) -> Int64:
    """Return for each query the last index up to *place* whose value is above *limit*; any index if there is none.

    A tree of maxima: up from *place* to a block that holds such a value, then down to the last one in it.
    """
    size = 1 << (len(values) - 1).bit_length()
    levels = [np.append(values, np.full(size - len(values), np.iinfo(np.int64).min))]
    while len(levels[-1]) > 1:
        levels.append(np.maximum(levels[-1][::2], levels[-1][1::2]))
    block, height = np.maximum(place, 0), np.zeros(len(place), np.int64)
    searching = np.arange(len(place))
    for maxima in levels:
        searching = searching[maxima[block[searching]] <= limit[searching]]
        # The parent of a right block adds what is left of it; left of a left block is the parent's neighbor.
        block[searching] = (block[searching] - 1) >> 1
        height[searching] += 1
        searching = searching[block[searching] >= 0]
    for level in range(len(levels) - 2, -1, -1):
        below = np.flatnonzero((height > level) & (block >= 0))
        right = 2 * block[below] + 1
        block[below] = np.where(levels[level][right] > limit[below], right, right - 1)
    return np.maximum(block, 0)


# Which collective each communication kernel belongs to.

# Labels that name the reason of a collective: torch's for fully_shard's units (by module) and for pipeline actions (by
# stage and micro-batch), and those of dptrace's trainers for gradients, the steps of a ring, expert and tensor
# parallelism.
_LABELS = ("FSDP::all_gather", "FSDP::post_backward_reduce", "PP:", "MoE::", "TP::", "DP::", "Ring::")
_ACCUMULATES = (
    "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
    "torch::autograd::AccumulateGrad",
)
"""Operators in which autograd calls the hooks of an accumulated gradient."""


def collectives_of(trace: Trace, events: Int64, launch: Int64) -> tuple[Collective, ...]:
    """Return the collective of each communication kernel.

    It comes from the kernel's own metadata, else from that of the events that enclose its launch
    (``record_param_comms``), else the kind comes from their names (``nccl:all_reduce``, ``c10d::allreduce_``: RCCL
    names every kernel Generic), else from the kernel's name. A kernel of that name whose launch is not recorded is of
    the others' kind, where they are all of one.
    """
    launched = launch >= 0
    thread, time, comm = trace.thread[launch], trace.start_ns[launch], trace.comm
    ops = (trace.category == Category.CPU_OP) | (trace.category == Category.ANNOTATION)
    callers = []
    for prefixes in CALLERS:
        outer = last_enclosing(trace, ops & trace.named(*prefixes), thread, time)
        callers.append(np.where(launched, outer, -1))
    caller_names = [np.where(outer >= 0, trace.name[outer], -1).tolist() for outer in callers]
    sources = zip(events.tolist(), *(outer.tolist() for outer in callers), strict=True)
    names_of = zip(*caller_names, trace.name[events].tolist(), strict=True)
    hooked = last_enclosing(trace, ops & trace.named(*_ACCUMULATES), thread, time) >= 0
    gradients = (launched & hooked).tolist()
    plain: dict[tuple[tuple[int, ...], str, bool], Collective] = {}
    collectives = []
    for nearest, names, label, hook in zip(sources, names_of, labels_of(trace, launch), gradients, strict=True):
        # Shapes alone are not metadata: they serve gloo, whose events carry nothing else.
        args = next((comm[i] for i in nearest if i in comm and not comm[i].elements), None) if comm else None
        together = synchronizes(trace.names[names[-1]])
        if args is not None:
            kind = kind_of(args.kind) or _kind(trace, names)
            collectives.append(collective_of(kind, args, label, together, hook))
            continue
        # Most have only names, of which there are few.
        known = names, label, hook
        if known not in plain:
            plain[known] = Collective(_kind(trace, names), label=label, synchronizes=together, gradients=hook)
        collectives.append(plain[known])
    kernels = trace.name[events].tolist()
    kinds: dict[int, set[str]] = {}
    for place in np.flatnonzero(launched).tolist():
        kinds.setdefault(kernels[place], set()).add(collectives[place].kind)
    for place in np.flatnonzero(~launched).tolist():
        if events[place] not in trace.comm and len(only := kinds.get(kernels[place], ())) == 1:
            collectives[place] = replace(collectives[place], kind=next(iter(only)))
    return tuple(collectives)


def _kind(trace: Trace, names: tuple[int, ...]) -> str:
    """Return the kind that the first informative name indicates."""
    kinds = (kind_of(trace.names[name]) for name in names if name >= 0)
    return next(filter(None, kinds), "other")


def labels_of(trace: Trace, launch: Int64) -> list[str]:
    """Return the trainer's label around each launch, or an empty string; -1 is an unknown launch."""
    ops = (trace.category == Category.CPU_OP) | (trace.category == Category.ANNOTATION)
    found = last_enclosing(trace, ops & trace.named(*_LABELS), trace.thread[launch], trace.start_ns[launch])
    names = np.array([*trace.names, ""], object)
    labels: list[str] = names[np.where((launch >= 0) & (found >= 0), trace.name[found], -1)].tolist()
    return labels


def collective_of(
    kind: str, args: CommArgs, label: str = "", together: bool | None = None, gradients: bool = False
) -> Collective:
    """Build the collective that metadata describes; *together* is whether its kernel synchronizes, where known."""
    known = (args.bytes, args.dtype, args.group, args.group_size, args.seq, args.ranks, args.description, args.peer)
    return Collective(kind, *known, label, together, gradients)


# Gloo's events: which operator requested each of them, and what it requested.

WAITS = ("_c10d_functional::wait_tensor", "c10d_functional::wait_tensor", "Work.wait", "c10d::Work::wait")
"""Starts of the names of the operators in which a thread waits for a collective."""

_MOST = 0.8
"""Share of the events, and of the operators, that a recording has of both where only a few are lost."""
_CARRIED_OUT_AS = {"reduce_scatter": "all_reduce"}
"""Gloo has no reduce-scatter: it all-reduces, and each rank copies its share."""


def enqueuing_operator(trace: Trace, comm: Int64) -> Int64:
    """Return for each of gloo's events the operator that requested it, or the event itself where that is unknown.

    Each process group has its own queue and threads, and the file does not link events to operators. But among events
    of one kind and element count, the n-th to start is the n-th that was requested, if the recording holds all of
    both. Where shapes were not recorded, or an operator's differ from gloo's, the kind alone is matched. A file that is
    cut has lost the events of whole threads, in all steps: there, and where a few events or operators are lost, each
    event is of the last operator before it.

    Args:
        comm: indices of gloo's events, ascending.
    """
    ops = np.flatnonzero((trace.category == Category.CPU_OP) & trace.named(C10D_PREFIX))
    operator_of = comm.copy()
    for with_elements, some_lost in ((True, trace.cut), (False, trace.cut), (True, True)):
        free = np.flatnonzero(operator_of == comm)
        left = ops[~mask_of(operator_of, len(trace))[ops]]
        executed = _grouped((_executed_work(trace, event, with_elements) for event in comm[free].tolist()), free)
        requested = _grouped((_requested_work(trace, op, with_elements) for op in left.tolist()), left)
        for work, operators in requested.items():
            positions = np.array(executed.get(work, []), np.int64)
            by = np.array(operators, np.int64)
            if some_lost and (trace.cut or _MOST * max(len(by), len(positions)) <= min(len(by), len(positions))):
                positions, by = _last_before(trace, comm, positions, by)
                operator_of[positions] = by
            elif len(by) == len(positions) and (trace.start_ns[by] <= trace.start_ns[comm[positions]]).all():
                operator_of[positions] = by
    return operator_of


def _last_before(trace: Trace, comm: Int64, positions: Int64, ops: Int64) -> tuple[Int64, Int64]:
    """Pair events with the last operator before each; of several with one, the first, while operators are recorded."""
    start = trace.start_ns[comm[positions]]
    until = trace.start_ns[trace.thread == trace.thread[ops[-1]]].max() if trace.cut else start.max(initial=0)
    place = np.searchsorted(trace.start_ns[ops], start, side="right") - 1
    positions, place = (column[(place >= 0) & (start <= until)] for column in (positions, place))
    place, first = np.unique(place, return_index=True)
    return positions[first], ops[place]


def _grouped(keys: Iterable[Hashable], values: Int64) -> dict[Hashable, list[int]]:
    groups = defaultdict(list)
    for key, value in zip(keys, values.tolist(), strict=True):
        groups[key].append(value)
    return groups


def _executed_work(trace: Trace, event: int, with_elements: bool) -> tuple[str, int]:
    args = trace.comm.get(event, CommArgs())
    return kind_of(args.kind), args.elements if with_elements else 0


def _requested_work(trace: Trace, op: int, with_elements: bool) -> tuple[str, int]:
    """Return what gloo executes for an operator: the kind, and the number of input elements."""
    kind, args = kind_of(trace.names[trace.name[op]]), trace.comm.get(op, CommArgs())
    inputs = args.elements // args.group_size if kind == "all_gather" and args.group_size else args.elements
    return _CARRIED_OUT_AS.get(kind, kind), inputs if with_elements else 0


def requested_collectives(trace: Trace, events: Int64, ops: Int64, labels: Iterable[str]) -> tuple[Collective, ...]:
    """Return the collectives that operators requested from gloo, however gloo executed them.

    Args:
        events: gloo's events.
        ops: the operators that requested them, or the event itself where it is unknown.
    """
    return tuple(map(partial(_requested_collective, trace), events.tolist(), ops.tolist(), labels))


def _requested_collective(trace: Trace, event: int, op: int, label: str) -> Collective:
    executed, requested = trace.comm.get(event, CommArgs()), trace.comm.get(op, CommArgs())
    kind = kind_of(trace.names[trace.name[op]]) or kind_of(executed.kind) or "other"
    # Gloo's events record the input; the message is the larger side, which for an all-gather is the output.
    larger = executed.elements and requested.elements > executed.elements
    size = executed.bytes // executed.elements * requested.elements if larger else executed.bytes
    if kind == "all_gather" and not larger:
        size *= max(executed.group_size, 1)
    group_size = executed.group_size or requested.group_size
    args = replace(executed, bytes=min(size, MAX_BYTES), group_size=group_size, peer=requested.peer)
    return collective_of(kind, args, label)
