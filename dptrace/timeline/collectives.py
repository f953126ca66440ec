"""Which collective each communication kernel belongs to."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from dptrace.core.intervals import Int64
from dptrace.readers.communication import CALLERS, kind_of, synchronizes
from dptrace.readers.trace import Category, CommArgs, Trace
from dptrace.timeline.launches import last_enclosing
from dptrace.timeline.model import Collective

__all__ = ["collective_of", "collectives_of", "labels_of"]

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
    thread, time = trace.thread[launch], trace.start_ns[launch]
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
        args = next((a for i in nearest if (a := trace.comm.get(i)) and not a.elements), None) if trace.comm else None
        together = synchronizes(trace.names[names[-1]])
        if args is not None:
            kind = kind_of(args.collective) or _kind(trace, names)
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
    texts = (trace.names[name] for name in names if name >= 0)
    return next((kind for text in texts if (kind := kind_of(text))), "other")


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
