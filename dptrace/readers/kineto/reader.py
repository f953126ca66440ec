"""A Kineto trace file as columns: what the document is like around its events, and what to do when it is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.core.text import sanitize
from dptrace.errors import TraceError
from dptrace.readers.communication import GLOO_PREFIX, communication_names
from dptrace.readers.formats import pieces
from dptrace.readers.kineto.columns import DAMAGE, Columns
from dptrace.readers.kineto.comm_metadata import with_global_ranks, with_gloo_groups
from dptrace.readers.kineto.decode import EventSink, add_piece, add_stretch, take_events
from dptrace.readers.kineto.envelope import BLANK, Metadata, decode_document, end_of, recover_metadata
from dptrace.readers.kineto.json_stream import LIST
from dptrace.readers.kineto.parallel_decode import ParallelDecoder, is_worthwhile
from dptrace.readers.kineto.repair import recover_metadata_fields
from dptrace.readers.kineto.validation import EventColumns, validate_events
from dptrace.readers.sources.source import Source
from dptrace.readers.stream import Piece
from dptrace.readers.trace import CommArgs, Trace

__all__ = ["Metadata", "damage_of", "read_into", "read_trace"]


_MOST_LISTS = 10
"""Lists of events that one file may hold; some tools put files one after the other."""


def _finish(source: Source, piece: Piece, columns: EventSink) -> tuple[Metadata, str]:
    """Decode the last piece with the rest of the document; give the metadata, and where the file is cut off."""
    if not piece.head:
        return _finish_bare(source, piece, columns)
    head, text, damage = piece.head, piece.text, list[str]()
    metadata: Metadata | None = None
    for _ in range(_MOST_LISTS):
        last = text.rfind(piece.between) + 1 if piece.between else 0
        sound = not last or take_events(text[:last].strip(BLANK), columns)
        found = end_of(head, text, last, sound)
        if found is None:
            break
        add_stretch(text[last if sound else 0 : found.end], piece.between, columns)
        metadata = metadata or found.metadata
        if (second := LIST.search(text, found.end)) is None:
            if piece.damage:
                damage.append(f"After the end of the document {piece.damage}; any part of it may be damaged, too.")
            if rest := text[found.closed :].strip(BLANK + b"\0"):
                damage.append(f"{len(rest):,} bytes follow the end of the document; they were not read.")
            return replace(metadata, damage=(*damage, *metadata.damage)), ""
        damage = damage or ["Holds more than one list of events; they were read as one."]
        head, text = b'{"traceEvents":[', text[second.end() :]
    if not sound:
        add_stretch(text[:last], piece.between, columns)
    rest = text[last:].lstrip(BLANK)
    with suppress(*DAMAGE):
        columns.decode(b"[" + rest[: rest.rfind(b"}") + 1] + b"]")
    metadata = metadata or decode_document(head, b"]}") or recover_metadata(head)
    cut_off = _cut_off(source, piece.damage or "it ends in the middle", columns)
    return replace(metadata, damage=(*damage, *metadata.damage)), cut_off


def _finish_bare(source: Source, piece: Piece, columns: EventSink) -> tuple[Metadata, str]:
    """Decode the end of a file of bare events, one to a line."""
    text = piece.text.strip(BLANK)
    add_stretch(text, piece.between, columns)
    why = "" if text.endswith((b"}", b"]")) else "it ends in the middle"
    base, rank_info = recover_metadata_fields(text[text.rfind(piece.between) + 1 :] if piece.between else text)
    damage = "Is no document of JSON but bare events, one after the other; they were read."
    return Metadata(base, rank_info, None, (damage,)), _cut_off(source, piece.damage or why, columns)


def _cut_off(source: Source, why: str, columns: EventSink) -> str:
    if not why:
        return ""
    return f"{source.name}: {why}, after {columns.events:,} events; the job may have been killed while writing it."


def read_into(source: Source, columns: EventSink, decoder: ParallelDecoder | None = None) -> tuple[Metadata, str]:
    """Fill *columns* with the events of a file; give what stands around them, and where the file is cut off.

    Args:
        helpers: processes that decode for these columns.

    Raises:
        TraceError: the file is missing, empty, no JSON, or JSON without a list of events.
    """
    metadata, cut_off = Metadata(), ""
    for piece in pieces(source):
        if piece.last:
            if decoder is not None:
                decoder.finish()
            metadata, cut_off = _finish(source, piece, columns)
        elif decoder is not None:
            decoder.add(piece.text, piece.between)
        else:
            add_piece(piece.text, piece.between, columns)
    return metadata, cut_off


def read_trace(file: Source | Path, jobs: int = 1, comm_patterns: Sequence[str] = ()) -> Trace:
    """Read one rank's trace.

    Args:
        jobs: maximum number of processes that decode a huge file; a file that one process reads as fast uses one.
        comm_patterns: regular expressions of further communication kernels.

    Raises:
        TraceError: the file was not written by torch.profiler, or no event in it can be read.
        UsageError: a pattern is not a regular expression, or matches every name.
        DptraceError: one of the processes was lost.
    """
    source = Source.of(file)
    columns = Columns()
    with _helpers(source, columns, jobs) as decoder:
        metadata, cut_off = read_into(source, columns, decoder)
    if not columns.kept:
        raise _nothing(source, columns, cut_off)
    return _assemble(source, columns, metadata, cut_off, comm_patterns)


def _helpers(source: Source, columns: Columns, jobs: int) -> AbstractContextManager[ParallelDecoder | None]:
    return ParallelDecoder(source, columns, jobs) if jobs > 1 and is_worthwhile(source, jobs) else nullcontext()


def _nothing(source: Source, columns: Columns, reason: str) -> TraceError:
    if columns.events:
        return TraceError(
            f"{source.address}: holds {columns.events:,} events, but none of an operator, an annotation or a kernel "
            f"that can be read: it is not a trace of torch.profiler. {reason}".strip()
        )
    return TraceError(f"{source.address}: holds no events. {reason}".strip())


def _assemble(
    source: Source, columns: Columns, metadata: Metadata, cut_off: str, comm_patterns: Sequence[str]
) -> Trace:
    table = columns.take_arrays()
    rows = EventColumns(*table)
    names = columns.names
    has_comm_args = np.zeros(len(rows.start), np.bool_)
    has_comm_args[list(columns.comm)] = True
    waits = communication_names(names, comm_patterns)[rows.name]
    good, end, impossible = validate_events(rows, has_comm_args, waits)
    damage = [*metadata.damage, *_implausible_metadata(metadata), *_timeless(columns), *impossible]
    order = _ordered(rows.start, end)
    order = order[good[order]]
    if not len(order):
        raise _nothing(source, columns, " ".join([cut_off, *damage]).strip())
    table[1] = end
    del rows, end, good, has_comm_args, waits
    base = metadata.base
    base_ns = base if type(base) is int and 0 <= base < 2**62 else 0
    info = metadata.distributed if isinstance(metadata.distributed, dict) else {}
    comm = with_global_ranks(_comm(columns, order), info.get("pg_config"))
    gloo = {i: columns.thread_id(table[4][order[i]]) for i in comm if names[table[3][order[i]]].startswith(GLOO_PREFIX)}
    comm = with_gloo_groups(comm, gloo, info.get("pg_config"), metadata.gloo_threads)
    table.reverse()

    def column(kind: Any, add: int = 0) -> NDArray[Any]:
        # One after the other, each forgotten at once: the unsorted columns and the sorted ones are never all there.
        values = table.pop()[order].astype(kind, copy=False)
        values += add
        return values

    return Trace(
        path=sanitize(source.address),
        rank=_whole(info.get("rank")),
        world_size=_whole(info.get("world_size")),
        start_ns=column(np.int64, base_ns),
        end_ns=column(np.int64, base_ns),
        category=column(np.uint8),
        name=column(np.int32),
        names=names,
        thread=column(np.int32),
        correlation=column(np.int64),
        device=column(np.int32),
        stream=column(np.int64),
        comm=comm,
        device_names=_device_names(metadata.devices),
        damage=(*damage_of(source.name, columns, cut_off), *(f"{source.name}: {sentence}" for sentence in damage)),
        cut=bool(cut_off) and not columns.saw_last_event,
    )


def _ordered(start: Int64, end: Int64) -> Int64:
    """Sort by start, the longer first, so that what encloses an event stands before it."""
    order: Int64 = np.argsort(start, kind="stable")
    # Few begin together, and what is nearly in order is sorted fast: a lexsort of all takes three times as long.
    same = start[order[1:]] == start[order[:-1]]
    together = np.flatnonzero(np.append(same, False) | np.append(False, same))
    events = order[together]
    order[together] = events[np.lexsort((-end[events], start[events]))]
    return order


def _comm(columns: Columns, order: Int64) -> dict[int, CommArgs]:
    """Give what is said of collectives by the places of their events in the *order*."""
    if not columns.comm:
        return {}
    position = np.full(columns.kept, -1, np.int64)
    position[order] = np.arange(len(order))
    return {int(position[old]): args for old, args in columns.comm.items() if position[old] >= 0}


def _implausible_metadata(metadata: Metadata) -> list[str]:
    """Say what the document tells of itself that can't be so, and was not believed."""
    base, info = metadata.base, metadata.distributed
    wrong = []
    if base is not None and not (type(base) is int and 0 <= base < 2**62):
        wrong.append("baseTimeNanoseconds is no time; its clock can't be compared with other ranks'.")
    if info is not None and not isinstance(info, dict):
        wrong.append("distributedInfo is no object; what it says of the rank was not read.")
    elif info and any(info.get(key) is not None and _whole(info[key]) is None for key in ("rank", "world_size")):
        wrong.append("distributedInfo gives a rank or world size that is none; it was not read.")
    return wrong


def damage_of(name: str, columns: EventSink, cut_off: str) -> list[str]:
    """Say what was cut off, mended or left out of the file *name*, a sentence each."""
    damage = []
    if cut_off:
        rest = (
            "Nothing of the recording is missing"
            if columns.saw_last_event
            else "Any step may lack work that was in the rest"
        )
        damage.append(f"{cut_off} {rest}.")
    if columns.repaired:
        damage.append(
            f"{name}: {_events(columns.repaired)} repaired: their JSON was damaged (quotation marks, control "
            "characters or bytes where none may stand, numbers that are none, commas)."
        )
    if columns.dropped:
        damage.append(f"{name}: {_events(columns.dropped)} left out that could not be decoded.")
    return damage


def _timeless(columns: Columns) -> list[str]:
    told = []
    if columns.missing_start:
        told.append(f"{_events(columns.missing_start)} left out without a time of beginning.")
    if columns.missing_duration:
        told.append(f"{_events(columns.missing_duration)} without a duration, taken to have had none.")
    return told


def _events(count: int) -> str:
    return f"{count:,} event" + "s" * (count != 1)


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 31 else None


def _device_names(properties: object) -> dict[int, str]:
    if not isinstance(properties, list):
        return {}
    devices = [device for device in properties if isinstance(device, dict) and type(device.get("id")) is int]
    return {device["id"]: str(device.get("name", "")) for device in devices}
