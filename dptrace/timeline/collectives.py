"""Which kernels communicate, and which collective each belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.errors import UsageError
from dptrace.readers.trace import Category, CommArgs, Trace
from dptrace.timeline.launches import enclosing
from dptrace.timeline.model import Collective

__all__ = ["collectives_of", "communication_names", "described", "kind_of", "labels_of"]

# "collective" alone is no sign: FlashAttention's compute kernels are named CollectiveMainloop.
_COMMUNICATION = re.compile(
    r"nccl|rccl|oneccl|msccl|cross_device_reduce|deep_ep::|internode::|intranode::|nvshmem.*(?:put|get|barrier|alltoall)",
    re.IGNORECASE,
)

_CALLERS = ("record_param_comms",), ("nccl:", "rccl:"), ("c10d::", "_c10d_functional::")
# torch's names for why it communicates: fully_shard's units by module, pipelines' actions by stage and micro-batch;
# and our own trainers' way of tokens to experts and back, and around layers that ranks share.
_LABELS = ("FSDP::all_gather", "FSDP::post_backward_reduce", "PP:", "MoE::", "TP::")

_KINDS = (
    # First match wins, on the name in lower case without underscores: of the longer names first.
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("crossdevicereduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("sendrecv", "send_recv"),
    ("recv", "recv"),
    ("send", "send"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("reduce", "reduce"),
    ("barrier", "barrier"),
)


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """Give the kind of collective that a name speaks of, or nothing.

    >>> kind_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), kind_of("_reduce_scatter_base"), kind_of("Generic")
    ('all_reduce', 'reduce_scatter', '')
    """
    plain = name.lower().replace("_", "")
    return next((kind for part, kind in _KINDS if part in plain), "")


def communication_names(names: Sequence[str], patterns: Sequence[str] = ()) -> NDArray[np.bool_]:
    """Tell which kernel names are communication's.

    Args:
        names: kernel names.
        patterns: regular expressions of further kernels, matched case-insensitively anywhere in the name.

    Raises:
        UsageError: a pattern is no regular expression.
    """
    try:
        extra = [re.compile(pattern, re.IGNORECASE) for pattern in patterns]
    except (re.error, OverflowError, RecursionError) as error:
        given = ", ".join(map(repr, patterns))
        raise UsageError(f"--comm-pattern {given}: not a regular expression: {error}.") from None
    if any(pattern.search("") for pattern in extra):
        raise UsageError("--comm-pattern: a pattern that fits nothing at all fits every kernel; be more precise.")
    tests = [_COMMUNICATION, *extra]
    return np.array([any(test.search(name) for test in tests) for name in names], np.bool_)


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
    for prefixes in _CALLERS:
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
