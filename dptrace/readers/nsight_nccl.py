"""Messages of NCCL in an export of Nsight Systems: NCCL marks its calls with ranges, whose payloads hold sizes.

NCCL describes each payload with a schema (NVIDIA/nccl src/include/nvtx_payload_schemas.h), and ``nsys export
--include-blobs true`` writes it as binary data: a header of 32 bytes with the schema's id at byte 8, then the fields
at the offsets of NVTX_PAYLOAD_SCHEMA_ENTRIES. ``--include-json true`` writes the fields by name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dptrace.readers.communication import kind_of
from dptrace.readers.kineto.columns import MAX_BYTES
from dptrace.readers.nsight_export import RANGES, Export
from dptrace.readers.trace import CommArgs

_COMM, _BYTES, _PEER = "NCCL communicator ID", "Message size [bytes]", "Peer rank"
_SIZE, _RANK = "No. of ranks", "Rank"
_HEADER = 32
"""Bytes before the fields of a payload."""
_WIDTHS = {_COMM: 8, _BYTES: 8, _PEER: 4, _SIZE: 4, _RANK: 4}
"""Bytes of each field that is read."""
_SHARES = frozenset({"all_gather", "reduce_scatter"})
"""Kinds whose call names the share of one rank, where nccl-tests counts the whole."""
_PAIRS = {"ncclSend": "send", "ncclRecv": "recv"}
_MAX_RANKS = 1 << 24
"""A larger size of a communicator is no number of ranks."""


class Message(msgspec.Struct, frozen=True):
    """A call of NCCL, with what its payload says."""

    start: int
    end: int
    thread: int
    name: str
    fields: dict[str, int]


def messages_of(export: Export, where: str, text: str) -> list[Message]:
    """Read NCCL's calls, in order.

    Args:
        where: SQL that selects the ranges of a process.
        text: SQL of a range's text.
    """
    known = export.tables[RANGES]
    if not {"start", "end", "globalTid"} <= known:
        return []
    data, written = (f'"{name}"' if name in known else "NULL" for name in ("binaryData", "jsonText"))
    schemas: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for schema, name, offset in export.few("NVTX_PAYLOAD_SCHEMA_ENTRIES", "schemaId", "name", "offset"):
        if name in _WIDTHS and isinstance(schema, int):
            schemas[schema].append((name, offset if isinstance(offset, int) and offset >= 0 else 0))
    rows = export.database.execute(
        f'SELECT start, "end", globalTid, {text}, {data}, {written} FROM {RANGES} WHERE {where} '
        f"AND {text} LIKE 'nccl%' ORDER BY start"
    )
    return [
        Message(start, end, thread, str(name), _of_bytes(blob, schemas) or _of_json(json))
        for start, end, thread, name, blob, json in rows
        if type(start) is int and type(end) is int and type(thread) is int
    ]


def _of_bytes(blob: object, schemas: Mapping[int, Sequence[tuple[str, int]]]) -> dict[str, int]:
    if not isinstance(blob, bytes):
        return {}
    fields = schemas.get(int.from_bytes(blob[8:16], "little"), ())
    places = {name: (_HEADER + offset, _HEADER + offset + _WIDTHS[name]) for name, offset in fields}
    return {name: int.from_bytes(blob[a:b], "little") for name, (a, b) in places.items() if b <= len(blob)}


def _of_json(text: object) -> dict[str, int]:
    try:
        found = msgspec.json.decode(text) if isinstance(text, str) else None
    except (msgspec.DecodeError, RecursionError):
        return {}
    while isinstance(found, dict) and not found.keys() & _WIDTHS.keys():
        found = next((value for value in found.values() if isinstance(value, dict)), None)
    return {name: value for name, value in (found or {}).items() if name in _WIDTHS and type(value) is int}


def sizes_of(messages: Iterable[Message]) -> dict[int, int]:
    """Return the number of ranks of each communicator that was created meanwhile."""
    sizes = {m.fields.get(_COMM, -1): m.fields.get(_SIZE, 0) for m in messages if _SIZE in m.fields}
    return {comm: size for comm, size in sizes.items() if 0 < size < _MAX_RANKS}


def own_rank(messages: Iterable[Message]) -> tuple[int, int] | None:
    """Return this process's rank in the largest communicator that was created meanwhile, and its size."""
    found = [(m.fields[_SIZE], -m.fields[_RANK]) for m in messages if {_SIZE, _RANK} <= m.fields.keys()]
    size, rank = max(found, default=(0, 0))
    return (-rank, size) if -rank < size < _MAX_RANKS else None


def described(messages: Sequence[Message], launches: Iterable[tuple[int, int, int]]) -> dict[int, CommArgs]:
    """Return what NCCL's calls say of the kernels that they launched, by the kernel's index.

    Calls between ncclGroupStart and ncclGroupEnd are launched by the end of the outermost group, several as one kernel
    or one each.

    Args:
        launches: index, thread and time of the launch of each communication kernel, by time.
    """
    by_thread: dict[int, list[Message]] = defaultdict(list)
    for message in messages:
        by_thread[message.thread].append(message)
    requested = {thread: _requested(calls) for thread, calls in by_thread.items()}
    starts = {thread: [call.start for call in calls] for thread, calls in by_thread.items()}
    kernels: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, thread, time in launches:
        place = bisect_right(starts.get(thread, ()), time) - 1
        if place >= 0 and time <= by_thread[thread][place].end:
            kernels[thread, place].append(index)
    sizes, found = sizes_of(messages), dict[int, CommArgs]()
    for (thread, place), indices in kernels.items():
        calls = requested[thread].get(place, [])
        groups = [[call] for call in calls] if len(calls) == len(indices) else [calls] if len(indices) == 1 else []
        for index, group in zip(indices, groups, strict=False):
            if args := _args(group, sizes):
                found[index] = args
    return found


def _requested(calls: Sequence[Message]) -> dict[int, list[Message]]:
    """Return the messages that each call launches, by its place."""
    found: dict[int, list[Message]] = {}
    pending, depth = list[Message](), 0
    for place, call in enumerate(calls):
        if call.name.startswith("ncclGroupStart"):
            depth += 1
        elif call.name.startswith("ncclGroupEnd"):
            depth = max(depth - 1, 0)
            if not depth:
                found[place], pending = pending, []
        elif _BYTES in call.fields:
            if depth:
                pending.append(call)
            else:
                found[place] = [call]
    return found


def _args(group: Sequence[Message], sizes: Mapping[int, int]) -> CommArgs | None:
    """Return the metadata of the kernel that carries out these messages; None if they are of several kinds."""
    totals: dict[str, int] = defaultdict(int)
    for message in group:
        totals[_PAIRS.get(message.name) or kind_of(message.name)] += message.fields[_BYTES]
    comms = {message.fields.get(_COMM, -1) for message in group}
    pairs = totals.keys() <= set(_PAIRS.values())
    if not group or len(comms) > 1 or not (pairs or len(totals) == 1):
        return None
    comm = comms.pop()
    kind, members = next(iter(totals)), sizes.get(comm, 0)
    # The messages of an all-to-all are pairs: what encloses the launch, or the kernel's name, has its kind.
    kind = "" if pairs and len(group) > 1 else kind
    size = max(totals.values()) * (members if kind in _SHARES else 1)
    group_name = f"{comm & (1 << 64) - 1:x}" if comm != -1 else ""
    return CommArgs(kind, size if size < MAX_BYTES else 0, group=group_name, group_size=members)
