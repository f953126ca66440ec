"""Gloo's work: which operator asked for each of its events, and for what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace

import numpy as np

from dptrace.core.intervals import Int64
from dptrace.readers.communication import C10D_PREFIX, kind_of
from dptrace.readers.kineto.comm_metadata import MAX_BYTES
from dptrace.readers.trace import Category, CommArgs, Trace
from dptrace.timeline.collectives import described
from dptrace.timeline.model import Collective

__all__ = ["enqueuing_operator", "requested_collective"]

_CARRIED_OUT_AS = {"reduce_scatter": "all_reduce"}
"""Gloo knows no reduce-scatter: it reduces everything everywhere, and each rank copies its share."""


def enqueuing_operator(trace: Trace, comm: Int64) -> Int64:
    """Give for each of gloo's events the operator that asked for it, or itself where that can't be told.

    Each process group has a queue and threads of its own, and the file says of no event whose it is. But of those
    that do the same with as many numbers, the n-th to start is the n-th that was asked for, as long as the recording
    holds all of both. Where shapes were not recorded, or an operator's differ from gloo's, the kind alone must do.

    Args:
        comm: gloo's events, ascending.
    """
    ops = np.flatnonzero((trace.category == Category.CPU_OP) & trace.named(C10D_PREFIX))
    found = comm.copy()
    for exactly in (True, False):
        free = np.flatnonzero(found == comm)
        left = np.setdiff1d(ops, found)
        wanted = _grouped((_work(trace, event, exactly) for event in comm[free].tolist()), free)
        for work, askers in _grouped((_asked(trace, op, exactly) for op in left.tolist()), left).items():
            done = np.array(wanted.get(work, []), np.int64)
            by = np.array(askers, np.int64)
            if len(by) == len(done) and (trace.start_ns[by] <= trace.start_ns[comm[done]]).all():
                found[done] = by
    return found


def _grouped(keys: Iterable[Hashable], values: Int64) -> dict[Hashable, list[int]]:
    groups = defaultdict(list)
    for key, value in zip(keys, values.tolist(), strict=True):
        groups[key].append(value)
    return groups


def _work(trace: Trace, event: int, exactly: bool) -> tuple[str, int]:
    args = trace.comm.get(event, CommArgs())
    return kind_of(args.collective), args.elements if exactly else 0


def _asked(trace: Trace, op: int, exactly: bool) -> tuple[str, int]:
    """Give what gloo will do for an operator: the kind, and how many numbers go in."""
    kind, args = kind_of(trace.names[trace.name[op]]), trace.comm.get(op, CommArgs())
    inside = args.elements // args.group_size if kind == "all_gather" and args.group_size else args.elements
    return _CARRIED_OUT_AS.get(kind, kind), inside if exactly else 0


def requested_collective(trace: Trace, event: int, op: int, label: str) -> Collective:
    """Give the collective that an operator asked gloo for: what is told is what was asked for, not how it was done.

    Args:
        event: gloo's event.
        op: what asked for it, or the event itself where that is not known.
    """
    done, asked = trace.comm.get(event, CommArgs()), trace.comm.get(op, CommArgs())
    kind = kind_of(trace.names[trace.name[op]]) or kind_of(done.collective) or "other"
    # Gloo's events tell what goes in; the message is the larger side, and an all-gather's is what comes out.
    larger = done.elements and asked.elements > done.elements
    size = done.bytes // done.elements * asked.elements if larger else done.bytes
    if kind == "all_gather" and not larger:
        size *= max(done.group_size, 1)
    whole = replace(done, bytes=min(size, MAX_BYTES), group_size=done.group_size or asked.group_size, peer=asked.peer)
    return described(kind, whole, label)
