"""Gloo's events: which operator requested each of them, and what it requested."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace

import numpy as np

from dptrace.core.arrays import mask_of
from dptrace.core.intervals import Int64
from dptrace.readers.communication import C10D_PREFIX, kind_of
from dptrace.readers.kineto.columns.comm_metadata import MAX_BYTES
from dptrace.readers.trace import Category, CommArgs, Trace
from dptrace.timeline.collectives import collective_of
from dptrace.timeline.model import Collective

__all__ = ["WAITS", "enqueuing_operator", "requested_collective"]

WAITS = ("_c10d_functional::wait_tensor", "c10d_functional::wait_tensor", "Work.wait", "c10d::Work::wait")
"""Starts of the names of the operators in which a thread waits for a collective."""

_CARRIED_OUT_AS = {"reduce_scatter": "all_reduce"}
"""Gloo has no reduce-scatter: it all-reduces, and each rank copies its share."""


def enqueuing_operator(trace: Trace, comm: Int64) -> Int64:
    """Return for each of gloo's events the operator that requested it, or the event itself where that is unknown.

    Each process group has its own queue and threads, and the file does not link events to operators. But among events
    of one kind and element count, the n-th to start is the n-th that was requested, if the recording holds all of
    both. Where shapes were not recorded, or an operator's differ from gloo's, the kind alone is matched.

    Args:
        comm: indices of gloo's events, ascending.
    """
    ops = np.flatnonzero((trace.category == Category.CPU_OP) & trace.named(C10D_PREFIX))
    operator_of = comm.copy()
    for with_elements in (True, False):
        free = np.flatnonzero(operator_of == comm)
        left = ops[~mask_of(operator_of, len(trace))[ops]]
        executed = _grouped((_executed_work(trace, event, with_elements) for event in comm[free].tolist()), free)
        requested = _grouped((_requested_work(trace, op, with_elements) for op in left.tolist()), left)
        for work, operators in requested.items():
            positions = np.array(executed.get(work, []), np.int64)
            by = np.array(operators, np.int64)
            if len(by) == len(positions) and (trace.start_ns[by] <= trace.start_ns[comm[positions]]).all():
                operator_of[positions] = by
    return operator_of


def _grouped(keys: Iterable[Hashable], values: Int64) -> dict[Hashable, list[int]]:
    groups = defaultdict(list)
    for key, value in zip(keys, values.tolist(), strict=True):
        groups[key].append(value)
    return groups


def _executed_work(trace: Trace, event: int, with_elements: bool) -> tuple[str, int]:
    args = trace.comm.get(event, CommArgs())
    return kind_of(args.collective), args.elements if with_elements else 0


def _requested_work(trace: Trace, op: int, with_elements: bool) -> tuple[str, int]:
    """Return what gloo executes for an operator: the kind, and the number of input elements."""
    kind, args = kind_of(trace.names[trace.name[op]]), trace.comm.get(op, CommArgs())
    inputs = args.elements // args.group_size if kind == "all_gather" and args.group_size else args.elements
    return _CARRIED_OUT_AS.get(kind, kind), inputs if with_elements else 0


def requested_collective(trace: Trace, event: int, op: int, label: str) -> Collective:
    """Return the collective that an operator requested from gloo, however gloo executed it.

    Args:
        event: gloo's event.
        op: the operator that requested it, or the event itself where it is unknown.
    """
    executed, requested = trace.comm.get(event, CommArgs()), trace.comm.get(op, CommArgs())
    kind = kind_of(trace.names[trace.name[op]]) or kind_of(executed.collective) or "other"
    # Gloo's events record the input; the message is the larger side, which for an all-gather is the output.
    larger = executed.elements and requested.elements > executed.elements
    size = executed.bytes // executed.elements * requested.elements if larger else executed.bytes
    if kind == "all_gather" and not larger:
        size *= max(executed.group_size, 1)
    group_size = executed.group_size or requested.group_size
    args = replace(executed, bytes=min(size, MAX_BYTES), group_size=group_size, peer=requested.peer)
    return collective_of(kind, args, label)
