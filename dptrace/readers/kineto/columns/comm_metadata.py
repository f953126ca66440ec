"""The metadata of collectives: NCCL's, else the shapes of tensors; and the process group of each of gloo's events."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from dptrace.readers.communication import C10D_PREFIX, GLOO_PREFIX
from dptrace.readers.kineto.event_schema import DAMAGE, Args, as_count
from dptrace.readers.trace import UNKNOWN_GROUP, CommArgs

__all__ = ["MAX_BYTES", "THREADS", "comm_args", "with_global_ranks", "with_gloo_groups"]

MAX_BYTES = 1 << 50
"""One pebibyte: larger sizes are ignored, so that sums fit 64 bits."""

_TO_A_PEER = ("c10d::send", "c10d::recv_")
"""Operators that enqueue a message between two ranks; with recorded shapes they name the peer, gloo's events don't."""

_ELEMENT_BYTES = {
    # Kineto writes NCCL metadata with c10's names (BFloat16), and input types with C++'s (c10::BFloat16, long int).
    **dict.fromkeys(("byte", "char", "bool", "unsigned char", "signed char", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "quint8", "qint8"), 1),
    **dict.fromkeys(("short", "short int", "half", "bfloat16"), 2),
    **dict.fromkeys(("int", "float"), 4),
    **dict.fromkeys(("long", "long int", "double", "complexfloat"), 8),
    "complexdouble": 16,
}


def comm_args(name: str, args: Args) -> CommArgs:
    """Return the metadata of the collective in an event's arguments."""
    if args.collective:
        numbers = (args.in_elements, args.out_elements, args.group_size, args.seq)
        inside, outside, members, seq = map(as_count, numbers)
        dtype = str(args.dtype or "")
        size = _possible(max(inside or 0, outside or 0) * _ELEMENT_BYTES.get(dtype.lower(), 0))
        group = str(args.group if args.group is not None else "")
        return CommArgs(
            str(args.collective),
            size,
            dtype,
            group,
            members or 0,
            -1 if seq is None else seq,
            _parse_ranks(args.ranks, members or 0) if type(args.ranks) is str else (),
            args.description if type(args.description) is str else "",
            next((int(rank) for rank in (args.source, args.target) if _RANK.fullmatch(str(rank))), -1),
        )
    return _by_shapes(name, args)


def _by_shapes(name: str, args: Args) -> CommArgs:
    tensors = _tensors(bytes(args.dims), bytes(args.types))
    if name.startswith(GLOO_PREFIX):
        size, dtype = sum(t.bytes for t in tensors), next((t.dtype for t in tensors if t.bytes), "")
        return CommArgs(
            name.removeprefix(GLOO_PREFIX), _possible(size), dtype, elements=sum(t.elements for t in tensors)
        )
    sides = sorted(t.elements for t in tensors if t.elements)
    shared = len(sides) == 2 and sides[1] % sides[0] == 0 and _SHARES.search(name) is not None
    return CommArgs(
        name.removeprefix(C10D_PREFIX),
        group_size=sides[1] // sides[0] if shared else 0,
        peer=_peer(name, bytes(args.concrete)),
        elements=max(sides, default=0),
    )


def _peer(name: str, inputs: bytes) -> int:
    """Read the third input of a send or receive: the peer's rank in its group."""
    if name not in _TO_A_PEER:
        return -1
    try:
        rank = msgspec.json.decode(inputs)[2]
        return int(rank) if _RANK.fullmatch(str(rank)) else -1
    except (*DAMAGE, TypeError, LookupError):
        return -1


def with_global_ranks(comm: dict[int, CommArgs], groups: Any) -> dict[int, CommArgs]:
    """Convert peers to global ranks where the file's list of groups is unambiguous, else drop them.

    Args:
        comm: collective metadata by event; peers without a group name are ranks in their group.
        groups: the ``pg_config`` of ``distributedInfo``: every group of this rank.
    """
    lists = [group.get("ranks") for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    members = [ranks for ranks in map(_counts, lists) if ranks is not None]

    def peer(args: CommArgs) -> int:
        ranks = {ranks[args.peer] for ranks in members if args.peer < len(ranks)} or {args.peer}
        return ranks.pop() if len(ranks) == 1 else -1

    return {i: replace(a, peer=peer(a)) if a.peer >= 0 and not a.group else a for i, a in comm.items()}


_RANK = re.compile(r"\d{1,9}", re.ASCII)


@lru_cache(maxsize=1024)
def _parse_ranks(text: str, size: int) -> tuple[int, ...]:
    """Parse a group's ranks; torch omits the middle of more than 30: ``[0, 2, 4, ..., 126]``."""
    ranks = tuple(map(int, _RANK.findall(text)))
    if "..." not in text or len(ranks) < 3:
        return ranks
    even = range(ranks[0], ranks[-1] + 1, max(ranks[1] - ranks[0], 1))
    whole = len(even) == size < 1 << 20 and tuple(even[: len(ranks) - 1]) == ranks[:-1]
    return tuple(even) if whole else ranks


def _possible(size: int) -> int:
    return size if 0 <= size < MAX_BYTES else 0


_SHARES = re.compile("all_?gather|reduce_scatter")
"""Operators whose larger tensor holds one share for each rank of the group."""


class _Tensors(NamedTuple):
    """One input of an operator: a tensor, or a list of them."""

    elements: int
    bytes: int
    """0 for lists whose type the file does not name."""
    dtype: str


@lru_cache(maxsize=1024)
def _tensors(dims: bytes, types: bytes) -> tuple[_Tensors, ...]:
    """Parse the inputs of an event from ``Input Dims`` and ``Input type``."""
    try:
        shapes, dtypes = msgspec.json.decode(dims), msgspec.json.decode(types)
        found = []
        for shape, dtype in zip(shapes, dtypes, strict=False):
            tensors = shape if shape and isinstance(shape[0], list) else [shape]
            known = str(dtype) not in _NO_TENSOR
            elements = _possible(sum(_elements(tensor) for tensor in tensors if known))
            size = _ELEMENT_BYTES.get(str(dtype).removeprefix("c10::").lower(), 0)
            found.append(_Tensors(elements if shape or size else 0, _possible(elements * size), str(dtype)))
        return tuple(found)
    except (*DAMAGE, TypeError):
        return ()


def _elements(shape: object) -> int:
    """Return the number of elements of a tensor; raise ValueError if this is no shape."""
    if (sizes := _counts(shape)) is None:
        raise ValueError("no shape")
    return math.prod(sizes)


_NO_TENSOR = ("", "Scalar", "ScalarList")

THREADS = 2
"""Threads per group that torch's ProcessGroupGloo creates by default; torch's Python code never sets another number."""
_PAIRS = frozenset({"send", "recv"})
"""Collectives that run on the calling thread, which does not show the group."""


def with_gloo_groups(
    comm: Mapping[int, CommArgs], thread_of: Mapping[int, object], groups: Any, threads: Any = None
) -> dict[int, CommArgs]:
    """Add the group of each of gloo's events, where a rank is in groups of different ranks.

    Groups and threads are both in order of creation, so two threads per group identify it. A thread that was idle
    while recording is missing in the file; then only the recorder's list identifies the groups.

    Args:
        comm: collective metadata by event.
        thread_of: thread id of each of gloo's own events.
        groups: the ``pg_config`` of ``distributedInfo``: every group of this rank.
        threads: ids of all of gloo's threads, as dptrace's recorder lists them; else anything.
    """
    known = list(filter(None, map(_group, groups))) if isinstance(groups, list) else []
    if len({group["ranks"] for group in known}) < 2:
        return dict(comm)
    # The thread of a message does not show its group: without a list of threads it would count to any of them.
    gloo_events = {event: thread for event, thread in thread_of.items() if comm[event].collective not in _PAIRS}
    messages = {event for event in thread_of if comm[event].collective in _PAIRS and comm[event].peer < 0}
    ids = _counts(threads) or sorted({thread for thread in gloo_events.values() if type(thread) is int})
    owners: dict[object, dict[str, Any]]
    owners = {thread: known[i // THREADS] for i, thread in enumerate(ids)} if len(ids) == THREADS * len(known) else {}
    unknown: dict[str, Any] = {"group": UNKNOWN_GROUP, "group_size": 0, "ranks": (), "description": ""}
    named = {event: replace(comm[event], **owners.get(thread, unknown)) for event, thread in gloo_events.items()}
    return {**comm, **named, **{event: replace(comm[event], **unknown) for event in messages}}


def _counts(values: object) -> list[int] | None:
    """Return a list of whole numbers, however they are spelled; None for anything else."""
    counts = [as_count(value) for value in values] if isinstance(values, list) else [None]
    whole = [count for count in counts if count is not None]
    return whole if len(whole) == len(counts) else None


def _group(entry: Any) -> dict[str, Any] | None:
    """Return the fields of CommArgs in one entry of ``pg_config``; None for a group without gloo."""
    if not isinstance(entry, dict) or "gloo" not in str(entry.get("backend_config", "gloo")):
        return None
    ranks = _counts(entry.get("ranks"))
    if ranks is None:
        return None
    name, description = str(entry.get("pg_name", "")), str(entry.get("pg_desc", ""))
    return {"group": name, "group_size": len(ranks), "ranks": tuple(ranks), "description": description}
