"""Read a Kineto trace file into columns: the document around its events, and its damage."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.gpu import GpuProperties, properties_of
from dptrace.core.intervals import Int64, median, unique
from dptrace.core.notes import CUT, DEVICE, LENGTHS, RECORDS, Note
from dptrace.core.units import plural, ranks_text, sanitize
from dptrace.errors import SeveralRanksError, TraceError
from dptrace.readers.communication import GLOO_PREFIX, is_communication
from dptrace.readers.formats import pieces
from dptrace.readers.kineto.columns import Columns, EventSink, with_global_ranks, with_gloo_groups
from dptrace.readers.kineto.decode import Metadata, ParallelDecoder, PieceDecoder, is_worthwhile
from dptrace.readers.kineto.details import DetailedColumns, MemoryColumns, OperatorColumns
from dptrace.readers.kineto.event_schema import Key, as_count, busy_processes
from dptrace.readers.kineto.foreign import UnreadDevice, program_of, unread_device
from dptrace.readers.kineto.json_stream import READS
from dptrace.readers.source import Source
from dptrace.readers.trace import Category, Trace

# Checks of one rank's events: impossible ones are dropped or shortened, and reported.

_Read = TypeVar("_Read")
_DAY = 86_400 * 10**9
"""Longer than any recording: Kineto keeps all of it in memory."""
_LAST = 2**62
"""146 years in ns, so that a sum with the clock's base fits 64 bits."""
_SECOND = 10**9
"""Longer events are no part of the time of which those cut short are a share: one wrong length would hide them all."""
_LITTLE = 0.05
"""Share of a device's time up to which events that were cut short do not limit figures."""
_WITHIN, _NEAR = 3, 8
"""A device event overruns if ``_WITHIN`` of the next ``_NEAR`` events on its stream lie within it."""


class EventColumns(msgspec.Struct, frozen=True):
    """The columns that are checked, an entry per event, in the order of the file."""

    start: Int64
    end: Int64
    category: NDArray[np.uint8]
    name: NDArray[np.int32]
    thread: NDArray[np.int32]
    correlation: Int64
    device: NDArray[np.int32]
    stream: Int64


def validate_events(
    rows: EventColumns, has_comm_args: NDArray[np.bool_], waits: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], Int64, list[Note]]:
    """Return which events to keep, when each ends, and what was wrong, a sentence each.

    Args:
        has_comm_args: which events carry a collective's metadata.
        waits: which events have the name of a communication kernel, which may wait for its peers.
    """
    notes: list[Note] = []

    def without(kept: NDArray[np.bool_], bad: NDArray[np.bool_], why: str) -> NDArray[np.bool_]:
        bad = kept & bad
        if bad.any():
            notes.append(Note(f"{{}} left out {why}.", (plural(int(bad.sum()), "event"),)))
        return kept & ~bad

    keep = np.ones(len(rows.start), np.bool_)
    beyond = (np.abs(rows.start) >= _LAST) | (rows.end >= _LAST)
    keep = without(keep, beyond, "with times beyond any clock")
    keep = without(keep, rows.end < rows.start, "with a negative duration")
    keep = without(keep, _far_in_time(rows, keep), "more than a day away from the others")
    on_device = (rows.category == Category.KERNEL) | (rows.category == Category.MEMORY)
    # One kernel may round to nothing; most of them, or most collectives, had a length that the file has lost.
    kernels, none = keep & (rows.category == Category.KERNEL), rows.end == rows.start
    groups = kernels & (has_comm_args | waits), kernels
    lost = np.logical_or.reduce([of & none & (2 * int((of & none).sum()) > int(of.sum())) for of in groups])
    if lost.any():
        keep = without(keep, lost, "with a duration of 0, as have most of their kind: how long they took is lost")
        notes[-1] = replace(notes[-1], kind=RECORDS)
    # On the CPU an operator may run twice within a microsecond; gloo's collectives take longer.
    twice = _repeated(rows, keep & np.where(on_device, rows.correlation > 0, has_comm_args))
    keep = without(keep, twice, "that the file holds twice")
    end, cut = _trim_overlaps(rows, keep & on_device, has_comm_args | waits)
    if cut:
        text = "{} on a GPU cut short: each overlaps several later events on its stream, which is impossible."
        # How long they were is not known; of little time, that does not matter.
        length, short = end - rows.start, end != rows.end
        rest = length[keep & on_device & ~short & (length < _SECOND)]
        is_much = int(length[short].sum()) > _LITTLE * int(rest.sum())
        notes.append(Note(text, (plural(cut, "event"),), kind=LENGTHS if is_much else ""))
    return keep, end, notes


def _far_in_time(rows: EventColumns, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Find events far from all others: times that were never set (pytorch#188481), or mixed clocks."""
    far = np.zeros(len(keep), np.bool_)
    if not keep.any() or int(rows.end[keep].max()) - int(rows.start[keep].min()) <= _DAY:
        return far
    set_times = keep & ((rows.start != 0) | (rows.end != 0))
    middle = int(median(rows.start[set_times])) if set_times.any() else 0
    far[:] = (rows.start < middle - _DAY) | (rows.end > middle + _DAY)
    return far


def _repeated(rows: EventColumns, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Find repeated copies of an event that takes time: no stream runs the same event twice at once."""
    found = np.zeros(len(among), np.bool_)
    events = np.flatnonzero(among & (rows.end > rows.start))
    order = events[np.argsort(rows.start[events], kind="stable")]
    touching = rows.start[order[1:]] == rows.start[order[:-1]]
    if not touching.any():
        return found
    events = order[np.append(touching, False) | np.append(False, touching)]
    columns = (rows.start, rows.end, rows.name, rows.correlation, rows.stream, rows.device, rows.thread)
    order = events[np.lexsort([column[events] for column in columns])]
    same = np.ones(len(order) - 1, np.bool_)
    for column in columns:
        same &= column[order[1:]] == column[order[:-1]]
    found[order[1:][same]] = True
    return found


def _trim_overlaps(rows: EventColumns, on_device: NDArray[np.bool_], waits: NDArray[np.bool_]) -> tuple[Int64, int]:
    """Cut events that overrun at the start of the next event on their stream (TraceLens#669: ROCm, after a long stall).

    Some overlaps are real and not cut: neighbors (programmatic dependent launch), the branches of a graph, whose
    kernels share one correlation, and a collective that waits for its peers on a stream that ROCm reports wrongly.
    """
    events = np.flatnonzero(on_device & (rows.stream >= 0))
    order = events[np.lexsort((rows.start[events], rows.thread[events]))]
    start, end, thread, stream = (column[order] for column in (rows.start, rows.end, rows.thread, rows.stream))
    if len(order) <= _WITHIN or not (end[:-_WITHIN] > start[_WITHIN:])[thread[:-_WITHIN] == thread[_WITHIN:]].any():
        return rows.end, 0
    within, then = np.zeros(len(order), np.int64), np.full(len(order), np.iinfo(np.int64).max)
    for k in range(1, min(_NEAR, len(order) - 1) + 1):
        follows = (thread[k:] == thread[:-k]) & (stream[k:] == stream[:-k]) & (start[k:] > start[:-k])
        within[:-k] += follows & (end[k:] <= end[:-k]) & (end[k:] > start[k:])
        then[:-k] = np.where(follows, np.minimum(then[:-k], start[k:]), then[:-k])
    ids, place, count = np.unique(rows.correlation[order], return_inverse=True, return_counts=True)
    overruns = (within >= _WITHIN) & (ids > 0)[place] & (count == 1)[place] & ~waits[order]
    result = rows.end.copy()
    result[order[overruns]] = then[overruns]
    return result, int(overruns.sum())


def read_into(
    source: Source, columns: EventSink, decoder: ParallelDecoder | None = None
) -> tuple[Metadata, Note | None]:
    """Fill *columns* with the events of a file; return its metadata, and where the file is truncated.

    Args:
        decoder: processes that decode for these columns.

    Raises:
        TraceError: the file is missing, empty, of no known format, without a list of events, or of two processes.
    """
    metadata, why = Metadata(), ""
    if source.part:
        return _read_rank_into(source, columns)
    serial = PieceDecoder(columns) if decoder is None else decoder.serial
    for piece in pieces(source):
        if piece.last:
            if decoder is not None:
                decoder.finish()
            metadata, why = serial.finish(piece)
            if metadata.writers:
                raise TraceError(f"{source.address}: {metadata.writers}")
        else:
            (decoder or serial).add(piece)
    if not why:
        return metadata, None
    end = f"{why}, after {{}} events; the job may have been killed while writing it."
    return metadata, Note(end, (f"{columns.events:,}",), source.name)


def _read_rank_into(source: Source, columns: EventSink) -> tuple[Metadata, Note | None]:
    """Do the same with the events of one rank of a file that holds several."""
    from dptrace.readers.kineto.processes import EventsOfRank, metadata_of  # few files hold several

    own = EventsOfRank(source, columns, read_into)
    metadata, cut_off = read_into(source.whole(), own)
    own.finish()
    return metadata_of(metadata, own.rank), cut_off


def refuse_several(source: Source, counted: Callable[[Category], Mapping[Key, int]]) -> None:
    """Raise an error for a file that holds several ranks, by which they are read one by one.

    Args:
        counted: returns how many events of a category each process has.

    Raises:
        SeveralRanksError: it holds several ranks.
        TraceError: it holds several processes and does not say which of them some work belongs to, or is a pipe.
    """
    processes = busy_processes(counted)
    if source.part or len(processes) < 2:
        return
    if source.single_pass:
        raise TraceError(
            f"{source.address}: holds {len(processes)} processes, which are read one by one, and a pipe can be read "
            "only once; save it as a file."
        )
    from dptrace.readers.kineto.processes import processes_of

    found = processes_of(source, read_into)
    if len(found.ranks) > 1:
        text = f"holds {len(found.ranks)} processes, read as {ranks_text(found.ranks)} {found.how}."
        raise SeveralRanksError(f"{source.name}: {text}", found.parts)


def read_trace(
    file: Source | Path,
    jobs: int = 1,
    comm_patterns: Sequence[str] = (),
    detailed: bool = False,
    operators: bool = False,
    memory: bool = False,
) -> Trace:
    """Read one rank's trace.

    Args:
        jobs: maximum number of processes that decode a huge file; a file that one process reads as fast uses one.
        comm_patterns: regular expressions of further communication kernels.
        detailed: also read the details of each event, in this process.
        operators: also read the inputs and sequence numbers of operators and short modules, in this process.
        memory: also read the memory events, in this process; without the details.

    Raises:
        TraceError: the file was not written by torch.profiler, or no event in it can be read.
        SeveralRanksError: it holds the events of several ranks.
        UsageError: a pattern is not a regular expression, or matches every name.
        DptraceError: one of the processes died.
    """
    source = Source.of(file)
    columns = (
        MemoryColumns() if memory else DetailedColumns() if detailed else OperatorColumns() if operators else Columns()
    )
    parallel = jobs > 1 and type(columns) is Columns and not source.part and is_worthwhile(source, jobs)
    with ParallelDecoder(source, columns, jobs) if parallel else nullcontext() as decoder:
        metadata, cut_off = read_into(source, columns, decoder)
    if not columns.kept:
        raise _no_events(source, columns, [*([cut_off] if cut_off else []), *_left_out(columns, source.name)])
    trace = _assemble(source, columns, metadata, cut_off, comm_patterns)
    if isinstance(columns, MemoryColumns):
        return dataclasses.replace(trace, memory=columns.memory_events(as_count(metadata.base) or 0))
    return trace


def _no_events(source: Source, columns: Columns, damage: Sequence[Note]) -> TraceError:
    reason = " ".join(map(str, damage))
    if program := program_of(columns.processes, [pid for _, pid in columns.unread]):
        return TraceError(f"{source.address}: is a trace {program}, which dptrace does not read; {READS}")
    if columns.events:
        return TraceError(
            f"{source.address}: holds {columns.events:,} events, but no readable operator, annotation or kernel: it is "
            f"not a trace of torch.profiler. {reason}".strip()
        )
    return TraceError(f"{source.address}: holds no events. {reason}".strip())


def _assemble(
    source: Source, columns: Columns, metadata: Metadata, cut_off: Note | None, comm_patterns: Sequence[str]
) -> Trace:
    table = columns.take_arrays()
    rows = EventColumns(*table)
    refuse_several(source, partial(_count_by_process, rows, columns))
    names = columns.names
    has_comm_args = np.zeros(len(rows.start), np.bool_)
    has_comm_args[list(columns.comm)] = True
    waits = is_communication(names, rows.name, rows.category == Category.KERNEL, comm_patterns)
    good, end, impossible = validate_events(rows, has_comm_args, waits)
    damage, missing = _damage(source.name, columns, metadata, rows, good)
    damage += [replace(note, file=source.name) for note in impossible]
    order = in_order(rows.start, end)
    order = order[good[order]]
    if not len(order):
        raise _no_events(source, columns, [*([cut_off] if cut_off else []), *damage])
    table[1] = end
    del rows, end, good, has_comm_args, waits
    # Marks of dptrace's recorder, which torch may record as operators.
    marks = np.fromiter((name.startswith("dptrace::") for name in names), np.bool_, len(names))
    table[2][marks[table[3]] & (table[2] == Category.CPU_OP)] = Category.ANNOTATION
    base_ns, products = as_count(metadata.base) or 0, _by_position(columns.products, columns, order)
    info = metadata.distributed if isinstance(metadata.distributed, dict) else {}
    comm = _by_position(columns.comm, columns, order)
    comm = with_global_ranks(comm, info.get("pg_config"), _rank(info.get("rank")))
    threads = columns.thread_ids
    gloo = {i: threads[table[4][order[i]]] for i in comm if names[table[3][order[i]]].startswith(GLOO_PREFIX)}
    comm = with_gloo_groups(comm, gloo, info.get("pg_config"), metadata.gloo_threads)
    table.reverse()

    def column(kind: Any, add: int = 0) -> NDArray[Any]:
        # One at a time, freed at once: the unsorted and the sorted columns are never all in memory.
        values = table.pop()[order].astype(kind, copy=False)
        values += add
        return values

    return Trace(
        path=sanitize(source.address),
        rank=_rank(info.get("rank")),
        world_size=_rank(info.get("world_size")),
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
        products=products,
        gpus=_gpus(metadata.devices or metadata.devices_2021),
        damage=(*damage_of(source.name, columns, cut_off), *damage),
        cut=bool(cut_off) and not columns.saw_last_event,
        host_name=metadata.host_name if isinstance(metadata.host_name, str) else "",
        **missing,
        **({"threads": columns.thread_names()} | columns.more(order)),
    )


def _damage(
    name: str, columns: Columns, metadata: Metadata, rows: EventColumns, good: NDArray[np.bool_]
) -> tuple[list[Note], dict[str, Any]]:
    """Return what is wrong with the file *name*, and the fields of its trace that say what is not in it."""
    on_device, log = rows.category >= Category.KERNEL, _log_of(metadata)
    device = _unread_device(columns, rows)
    damage = [
        *([_unread_note(device, name, bool(on_device.any()))] if device else []),
        *(Note(sentence, file=name) for sentence in (*metadata.damage, *_implausible_metadata(metadata))),
        *_left_out(columns, name, device.events if device else 0),
        *(replace(note, file=name) for note in _lost_by_kineto(log)),
    ]
    return damage, {
        "unread_device": device.name if device else "",
        "lost": columns.lost + int((on_device & ~good).sum()),
        "undecoded": columns.dropped,
        "has_syncs": columns.has_syncs,
        "out_of_window": sum(map(int, _OUT_OF_WINDOW.findall(log))),
    }


def _unread_device(columns: Columns, rows: EventColumns) -> UnreadDevice | None:
    """Return the device whose events are in the file, in categories that are not read."""
    if not columns.unread:
        return None
    pids = columns.process_ids
    read = {pids[thread] for thread in unique(rows.thread).tolist()}
    return unread_device(columns.unread, columns.processes, read, bool((rows.category >= Category.KERNEL).any()))


def _unread_note(device: UnreadDevice, name: str, read: bool) -> Note:
    """Return the note on a device whose events are not read; the premise holds where another one's are *read*."""
    rest = "they are left out" if read else "the figures are those of its host, and what it did itself is unknown"
    text = f"holds {{}} of {sanitize(device.name)}, which dptrace does not read: {rest}."
    return Note(text, (plural(device.events, "event"),), name, "" if read else DEVICE)


_OUT_OF_WINDOW = re.compile(r"\bOut-of-range = (\d{1,12})\b")
"""Records with times outside the recording's window: those of its warm-up or, of a wrong clock, any (kineto#996)."""
_STOPPED = re.compile(r"\b(?:CUPTI|GPU) stopped early\? = (?!0)|\bExceeded max GPU buffer count\b")
_DROPPED = re.compile(r"\bDropped (\d{1,12}) activity records\b")


def _log_of(metadata: Metadata) -> str:
    """Return the lines of Kineto's log that are in a file; only some builds write them."""
    lists = [lines for lines in (metadata.log, metadata.warnings) if isinstance(lines, list)]
    return "\n".join(line for lines in lists for line in lines if isinstance(line, str))


def _lost_by_kineto(log: str) -> Iterator[Note]:
    """Return a note on the records of a device that were lost in recording, by Kineto's own log."""
    rest = "kernels are missing, and idle time is at most what is shown."
    if _STOPPED.search(log):
        text = f"Kineto stopped recording the device early, since its buffers were full (its own log): {rest}"
        yield Note(text, kind=RECORDS)
    if dropped := sum(int(found[1]) for found in _DROPPED.finditer(log)):
        text = f"Kineto dropped {{}} of the device (its own log): {rest}"
        yield Note(text, (plural(dropped, "record"),), kind=RECORDS)


def _count_by_process(rows: EventColumns, columns: Columns, category: Category) -> Counter[object]:
    """Return how many events of a category each process has."""
    found = Counter[object]()
    of_thread = np.bincount(rows.thread[rows.category == category]).tolist()
    for pid, count in zip(columns.process_ids, of_thread, strict=False):
        found[pid] += count
    return found


def in_order(start: Int64, end: Int64) -> Int64:
    """Sort by start, longer events first, so that an enclosing event comes before those inside it."""
    order: Int64 = np.argsort(start, kind="stable")
    # Few events start together, and nearly sorted input sorts fast: a lexsort of all takes three times as long.
    tied = start[order[1:]] == start[order[:-1]]
    ties = np.flatnonzero(np.append(tied, False) | np.append(False, tied))
    events = order[ties]
    order[ties] = events[np.lexsort((-end[events], start[events]))]
    return order


def _by_position(read: dict[int, _Read], columns: Columns, order: Int64) -> dict[int, _Read]:
    """Return what was read of some events, by index among the kept ones, by each event's position in *order*."""
    if not read:
        return {}
    position = np.full(columns.kept, -1, np.int64)
    position[order] = np.arange(len(order))
    return {int(position[old]): value for old, value in read.items() if position[old] >= 0}


def _implausible_metadata(metadata: Metadata) -> Iterator[str]:
    """Describe the metadata that can't be right and was ignored."""
    base, info = metadata.base, metadata.distributed
    if base is not None and as_count(base) is None:
        yield "baseTimeNanoseconds is not a time; the clock can't be compared with those of other ranks."
    if info is not None and not isinstance(info, dict):
        yield "distributedInfo is not an object; it was ignored."
    elif info and any(info.get(key) is not None and _rank(info[key]) is None for key in ("rank", "world_size")):
        yield "distributedInfo has an invalid rank or world size, which was ignored."


def damage_of(name: str, columns: EventSink, cut_off: Note | None) -> list[Note]:
    """Describe what was truncated, repaired or dropped in the file *name*, a sentence each."""
    damage = []
    if cut_off:
        rest = "The recording is complete" if columns.saw_last_event else CUT
        damage.append(replace(cut_off, text=f"{cut_off.text} {rest}."))
    text = "{} repaired: invalid JSON (control characters, backslashes, invalid bytes or numbers, commas)."
    counts = {text: columns.repaired, "{} left out that could not be decoded.": columns.dropped}
    return damage + _counted(counts, name)


def _counted(events: dict[str, int], name: str) -> list[Note]:
    """Return a note on each number of events that is not 0."""
    return [Note(text, (plural(count, "event"),), name) for text, count in events.items() if count]


def _left_out(columns: Columns, name: str, of_device: int = 0) -> list[Note]:
    """Describe what was left out of the file *name*, but for *of_device* events of a category that is not read."""
    counts = {
        "{} with numbers out of range (a size, rank, sequence number or id), which could not be decoded; the rest of "
        "each was read.": columns.out_of_range,
        "{} left out without a start time.": columns.missing_start,
        "{} without a duration, counted as 0.": columns.missing_duration,
        "{} left out with a phase (ph) that dptrace does not read.": columns.unknown_phase,
        "{} left out with a category (cat) that dptrace does not read.": columns.unknown_category - of_device,
    }
    text = "{} of a device left out, whose duration is missing or unreadable: it was busy for longer than is shown."
    lost = [replace(note, kind=RECORDS) for note in _counted({text: columns.lost}, name)]
    return lost + _counted(counts, name)


def _rank(value: object) -> int | None:
    number = as_count(value)
    return number if number is not None and number < 1 << 31 else None


def _gpus(properties: object) -> dict[int, GpuProperties]:
    if not isinstance(properties, list):
        return {}
    devices = [(as_count(device.get("id")), properties_of(device)) for device in properties if isinstance(device, dict)]
    return {number: gpu for number, gpu in devices if number is not None and gpu is not None}
