"""Which collective each communication kernel belongs to."""

from __future__ import annotations

import numpy as np

from dptrace.core.intervals import Int64
from dptrace.readers.communication import CALLERS, kind_of
from dptrace.readers.trace import Category, CommArgs, Trace
from dptrace.timeline.launches import enclosing
from dptrace.timeline.model import Collective

__all__ = ["collectives_of", "described", "labels_of"]

# torch's names for why it communicates: fully_shard's units by module, pipelines' actions by stage and micro-batch;
# and our own trainers' way of tokens to experts and back, and around layers that ranks share.
_LABELS = ("FSDP::all_gather", "FSDP::post_backward_reduce", "PP:", "MoE::", "TP::")


def collectives_of(trace: Trace, events: Int64, launch: Int64) -> tuple[Collective, ...]:
    """Give the collective of each communication kernel.

    From the kernel's own metadata, else from that of what encloses its launch (``record_param_comms``), else the kind
    from the names of what encloses it (``nccl:all_reduce``, ``c10d::allreduce_``: RCCL calls every kernel Generic),
    else from the kernel's name.
    """
    launched = launch >= 0
    thread, time = trace.thread[launch], trace.start_ns[launch]
    ops = (trace.category == Category.CPU_OP) | (trace.category == Category.ANNOTATION)
    callers = []
    for prefixes in CALLERS:
        found = enclosing(trace, ops & trace.named(*prefixes), thread, time)
        callers.append(np.where(launched, found, -1))
    names = [np.where(found >= 0, trace.name[found], -1).tolist() for found in callers]
    sources = zip(events.tolist(), *(found.tolist() for found in callers), strict=True)
    said = zip(*names, trace.name[events].tolist(), strict=True)
    plain: dict[tuple[tuple[int, ...], str], Collective] = {}
    collectives = []
    for from_any, spoken, label in zip(sources, said, labels_of(trace, launch), strict=True):
        # Shapes alone are no metadata: they are for gloo, whose events tell no more.
        args = next((a for i in from_any if (a := trace.comm.get(i)) and not a.elements), None) if trace.comm else None
        if args is not None:
            kind = kind_of(args.collective) or _kind(trace, spoken)
            collectives.append(described(kind, args, label))
            continue
        # Most say nothing but their names, of which there are few.
        if (spoken, label) not in plain:
            plain[spoken, label] = Collective(_kind(trace, spoken), label=label)
        collectives.append(plain[spoken, label])
    return tuple(collectives)


def _kind(trace: Trace, spoken: tuple[int, ...]) -> str:
    """Give the kind that the first telling name speaks of."""
    names = (trace.names[name] for name in spoken if name >= 0)
    return next((kind for text in names if (kind := kind_of(text))), "other")


def labels_of(trace: Trace, launch: Int64) -> list[str]:
    """Give what the trainer called what it launched with each event, or nothing; -1 stands for an unknown launch."""
    ops = (trace.category == Category.CPU_OP) | (trace.category == Category.ANNOTATION)
    found = enclosing(trace, ops & trace.named(*_LABELS), trace.thread[launch], trace.start_ns[launch])
    names = np.array([*trace.names, ""], object)
    labels: list[str] = names[np.where((launch >= 0) & (found >= 0), trace.name[found], -1)].tolist()
    return labels


def described(kind: str, args: CommArgs, label: str = "") -> Collective:
    """Give the collective that metadata speaks of."""
    known = (args.bytes, args.dtype, args.group, args.group_size, args.seq, args.ranks, args.description, args.peer)
    return Collective(kind, *known, label)
