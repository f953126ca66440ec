"""Exports of Nsight Systems as columns: a trace for each rank that a file holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, unique
from dptrace.core.notes import Note
from dptrace.core.units import listed, plural, sanitize
from dptrace.errors import TraceError
from dptrace.readers.communication import is_communication
from dptrace.readers.kineto.details import event_details
from dptrace.readers.kineto.reader import EventColumns, in_order, validate_events
from dptrace.readers.nsight_export import (
    CALLS,
    COPIES,
    EVENTS,
    GRAPHS,
    KERNELS,
    RANGES,
    SETS,
    SYNCS,
    THREAD,
    THREAD_BITS,
    Export,
    is_export,
    opened,
)
from dptrace.readers.nsight_nccl import Message, described, messages_of, own_rank
from dptrace.readers.source import Source
from dptrace.readers.trace import (
    NO_MEMORY_EVENTS,
    Category,
    CommArgs,
    EventDetails,
    OperatorArgs,
    OperatorInputs,
    Trace,
)

_MEMBER = re.compile(r"process (\d+)(?: on GPU (\d+))?")

_VERSION = re.compile(r"_v\d+(?=_ptsz|$)")
"""CUDA's version in the name of a call: cudaLaunchKernel_v7000."""
_OPERATOR = re.compile(r"::|Backward\d*$|^(?:detach_?|record_param_comms)$")
_LABEL = re.compile(
    r"FSDP::|FullyShardedDataParallel\.|DistributedDataParallel\.|Optimizer\.|ProfilerStep#|dptrace::|nccl"
)
"""Starts of the names of torch's labels, which are no operators."""
_ENGINE_THREAD = re.compile(r"pt_autograd_\d+$")
_ENGINE = "autograd::engine::evaluate_function: "

# CUPTI's numbers, spelled as Kineto spells them.
_COPY_KINDS = dict(enumerate(["HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"], 1))
_MEMORY_KINDS = dict(enumerate(["Pageable", "Pinned", "Device", "Array", "Managed", "Device", "Managed"]))
_NODE = re.compile(r"(?:Backward\d*$|^torch::autograd::AccumulateGrad)$")
_PUSH_POP, _START_END = 59, 60
"""NVTX's events that are ranges."""
_SEQUENCE = "CASE WHEN seq_at THEN CAST(substr(words, seq_at + 8) AS INTEGER) WHEN op_id_at THEN -2 ELSE -1 END"
_WORDS_END = "CASE WHEN seq_at THEN seq_at WHEN op_id_at THEN op_id_at WHEN sizes_at THEN sizes_at ELSE 1000000 END"
"""SQL of what torch appends to a name: autograd's number, or -2 for another range of torch, and where it starts."""


_EVENT_SYNCS = (1, 2)
"""CUPTI's numbers of waits for an event, by the host and by a stream; others wait for a stream or a context."""
_NO_STREAM = 0xFFFF_FFFF
"""CUPTI's stream of a synchronization without one."""


# One rank's events, table by table.


class _Part(NamedTuple):
    """Columns of events of one category."""

    category: Category
    start: Int64
    end: Int64
    name: NDArray[np.int32]
    thread: Int64
    """Packed process and thread, or a device and stream as a negative number."""
    correlation: Int64
    device: Int64
    stream: Int64
    detail: Int64
    """Number of what a table says of it, 0 for nothing."""
    sequence: Int64
    """Autograd's number of an operator."""


_EMPTY = {"correlation": -1, "device": -1, "stream": -1, "detail": 0, "sequence": -1}
"""The columns that only some categories have, and what the others have there."""


class _Names:
    """A string table."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Return the number of each text."""
        numbers = self.numbers
        for text in dict.fromkeys(texts):
            numbers.setdefault(text, len(numbers))
        return np.array([numbers[text] for text in texts], np.int32)

    def of_ids(self, ids: Int64, texts: Mapping[int, str]) -> NDArray[np.int32]:
        """Return the number of the text of each id, of which there are few."""
        used = unique(ids)
        return self.of([texts[number] for number in used.tolist()])[np.searchsorted(used, ids)]


class _Rank:
    """The events of one rank while they are read."""

    def __init__(self, export: Export, more: bool) -> None:
        self.export, self.more = export, more
        member = _MEMBER.fullmatch(export.source.member)
        self.process = int(member[1]) if member else None
        self.gpu = int(member[2]) if member and member[2] else None
        self.names, self.parts = _Names(), list[_Part]()
        self.details: dict[Any, int] = {None: 0}
        """Arguments of :func:`event_details`, and their numbers."""
        self.notes: list[str] = []
        self.messages: list[Message] = []

    def read(self) -> None:
        """Read all tables.

        Raises:
            TraceError: device work has no times or no names.
        """
        self.export.require_times()
        self._kernels()
        self._graphs()
        self._memory()
        self._calls()
        self._ranges()

    def of_process(self, table: str, column: str) -> str:
        """Return SQL that is true for rows of this process."""
        if self.process is None or column not in self.export.tables.get(table, ()):
            return "1"
        return f'("{column}" >> {THREAD_BITS} & {THREAD}) = {self.process}'

    def add(
        self, category: Category, start: Int64, end: Int64, name: NDArray[np.int32], thread: Int64, **more: Int64
    ) -> None:
        """Add events; columns that are not given are empty."""
        filled = {key: np.broadcast_to(np.int64(empty), len(start)) for key, empty in _EMPTY.items()}
        self.parts.append(_Part(category, start, end, name, thread, **{**filled, **more}))

    def _device_rows(self, table: str, *more: str) -> tuple[Int64, ...]:
        """Return start, end, device, stream, correlation and further columns of a table of GPU work."""
        column = self.export.column
        common = [column(table, name) for name in ("start", "end", "deviceId", "streamId", "correlationId")]
        where = self.of_process(table, "globalPid")
        if self.gpu is not None and "deviceId" in self.export.tables.get(table, ()):
            where += f' AND "deviceId" = {self.gpu}'
        return tuple(self.export.rows(table, [*common, *more], where)[0])

    def _add_device(self, category: Category, rows: Sequence[Int64], name: NDArray[np.int32], detail: Int64) -> None:
        start, end, device, stream, correlation = rows
        # A thread of its own for each stream, as a negative number.
        thread = -1 - (np.maximum(device, 0) << 32) - np.maximum(stream, 0)
        self.add(
            category, start, end, name, thread, correlation=correlation, device=device, stream=stream, detail=detail
        )

    def _kernels(self) -> None:
        column, tables = self.export.column, self.export.tables.get(KERNELS, set())
        names = [name for name in ("demangledName", "shortName", "mangledName") if name in tables]
        shape = [f"{of}{axis}" for of in ("grid", "block") for axis in "XYZ"] if self.more else []
        more = [column(KERNELS, *(names or ["demangledName"])), *(column(KERNELS, name) for name in shape)]
        *rows, name = (read := self._device_rows(KERNELS, *more))[:6]
        detail = self._detail(len(name), read[6:], lambda row: (b"", b"", _json(row[:3]), _json(row[3:]), b"", None))
        self._add_device(Category.KERNEL, rows, self.names.of_ids(name, self.export.texts(name)), detail)

    def _graphs(self) -> None:
        if GRAPHS not in self.export.tables:
            return
        *rows, graph = self._device_rows(GRAPHS, self.export.column(GRAPHS, "graphId"))
        texts = {number: f"CUDA graph {number}" for number in unique(graph).tolist()}
        self._add_device(Category.KERNEL, rows, self.names.of_ids(graph, texts), np.zeros_like(graph))
        if len(graph):
            self.notes.append(
                f"{plural(len(graph), 'launch', 'launches')} of CUDA graphs are recorded as a whole each and count as "
                "compute, also what communicates in them. nsys profile --cuda-graph-trace=node records their kernels."
            )

    def _memory(self) -> None:
        column, tables = self.export.column, self.export.tables
        if COPIES in tables:
            more = [column(COPIES, name) for name in ("copyKind", "srcKind", "dstKind", "bytes")]
            *rows, kind, source, target, size = self._device_rows(COPIES, *more)
            packed = (kind & 255) << 16 | (source & 255) << 8 | target & 255
            texts = {number: _copy_name(number) for number in unique(packed).tolist()}
            self._add_device(Category.MEMORY, rows, self.names.of_ids(packed, texts), self._sizes(size))
        if SETS in tables:
            *rows, kind, size = self._device_rows(SETS, column(SETS, "memKind"), column(SETS, "bytes"))
            texts = {number: f"Memset ({_MEMORY_KINDS.get(number, 'Unknown')})" for number in unique(kind).tolist()}
            self._add_device(Category.MEMORY, rows, self.names.of_ids(kind, texts), self._sizes(size))

    def _sizes(self, size: Int64) -> Int64:
        return self._detail(len(size), [size], lambda row: (b"", b"", b"", b"", b"", row[0]))

    def _detail(self, count: int, columns: Sequence[Int64], args: Callable[[list[int]], tuple[Any, ...]]) -> Int64:
        """Return the number of the details of each of *count* rows, which *args* makes of distinct ones."""
        if not self.more or not count:
            return np.zeros(count, np.int64)
        rows, place = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
        numbers = [self.details.setdefault(args(row), len(self.details)) for row in rows.tolist()]
        return np.array(numbers, np.int64)[place.reshape(-1)]

    def _calls(self) -> None:
        names = ("start", "end", "globalTid", "correlationId", "nameId")
        wanted = [self.export.column(CALLS, name) for name in names]
        where = self.of_process(CALLS, "globalTid")
        (start, end, thread, correlation, name), _ = self.export.rows(CALLS, wanted, where)
        texts = {number: _VERSION.sub("", text) for number, text in self.export.texts(name).items()}
        self.add(
            Category.LAUNCH, start, end, self.names.of_ids(name, texts), np.maximum(thread, 0), correlation=correlation
        )

    def _ranges(self) -> None:
        """Read NVTX's ranges: operators and labels of torch, calls of NCCL, and those of users."""
        if RANGES not in self.export.tables:
            self.export.missing[RANGES] = None
            return
        text, column = self.export.range_text(), self.export.column
        # torch's emit_nvtx writes "aten::mm, seq = 5, op_id = 7, sizes = [[8, 8], [8, 8]]".
        places = [f"instr({text}, ', {key} = ') AS {key}_at" for key in ("seq", "op_id", "sizes")]
        typed = "eventType" in self.export.tables[RANGES]
        kinds = f'"eventType" IN ({_PUSH_POP}, {_START_END}) AND ' if typed else ""
        where = f'{kinds}"end" IS NOT NULL AND {self.of_process(RANGES, "globalTid")}'
        numbers = [f"{column(RANGES, name)} AS {name}_" for name in ("start", "end", "globalTid")]
        wanted = ["start_", "end_", "globalTid_", _SEQUENCE]
        texts = [f"substr(words, 1, {_WORDS_END} - 1)"]
        if self.more:
            texts.append("CASE WHEN sizes_at THEN substr(words, sizes_at + 10) ELSE '' END")
        once = ", ".join([*numbers, f"{text} AS words", *places])
        (start, stop, thread, sequence), words = self.export.rows(RANGES, wanted, where, texts, once)
        name, thread = self.names.of(words[0]), np.maximum(thread, 0)
        sizes = [self._of_sizes(word) for word in words[1]] if self.more else []
        detail = np.array(sizes, np.int64) if sizes else np.zeros(len(name), np.int64)
        operator = self._operators(name, sequence)
        for category, chosen in ((Category.CPU_OP, operator), (Category.ANNOTATION, ~operator)):
            more = {"detail": detail[chosen], "sequence": np.maximum(sequence[chosen], -1)}
            self.add(category, start[chosen], stop[chosen], name[chosen], thread[chosen], **more)
        if any(word.startswith("nccl") for word in self.names.numbers):
            self.messages = messages_of(self.export, where, text)

    def _of_sizes(self, sizes: str) -> int:
        dims = sizes.partition(", input_op_ids")[0].encode()
        return self.details.setdefault((dims, b"", b"", b"", b"", None), len(self.details)) if dims else 0

    def _operators(self, name: NDArray[np.int32], sequence: Int64) -> NDArray[np.bool_]:
        """Return which ranges are operators: torch's, if autograd numbers them or their name says so, but no labels.

        Args:
            sequence: autograd's number, else -2 for a range of torch, -1 for others.
        """
        count = len(self.names.numbers)
        shaped = np.fromiter((bool(_OPERATOR.search(text)) for text in self.names.numbers), np.bool_, count)
        label = np.fromiter((bool(_LABEL.match(text)) for text in self.names.numbers), np.bool_, count)
        shaped[name[sequence >= 0]] = True
        result: NDArray[np.bool_] = (sequence != -1) & (shaped & ~label)[name]
        return result


def _json(values: Sequence[int]) -> bytes:
    return msgspec.json.encode(values)


def _copy_name(packed: int) -> str:
    kind = _COPY_KINDS.get(packed >> 16, "")
    ends = [_MEMORY_KINDS.get(number, "Unknown") for number in (packed >> 8 & 255, packed & 255)]
    return f"Memcpy {kind} ({ends[0]} -> {ends[1]})".replace("  ", " ")


def read_export(
    source: Source, comm_patterns: Sequence[str] = (), detailed: bool = False, operators: bool = False
) -> Trace:
    """Read the trace of one rank from an export; the options are those of ``formats.read_trace``.

    Raises:
        TraceError: the file can't be read, or holds nothing of this rank.
        UsageError: a pattern is not a regular expression, or matches every name.
    """
    with opened(source) as export:
        rank = _Rank(export, more=detailed or operators)
        rank.read()
        _add_engine(rank)
        return _assemble(rank, comm_patterns, operators)


def read_syncs(source: Source) -> NDArray[np.int64]:
    """Return the synchronizations of one rank, a row each: the call, device, stream, awaited stream, recording call.

    What is not known is -1. Waits for an event are left out where the file doesn't say which stream recorded it.

    Raises:
        TraceError: the file can't be read.
    """
    with opened(source) as export:
        rank = _Rank(export, more=False)

        def rows(table: str, *names: str) -> list[Int64]:
            wanted = [export.column(table, name) for name in names]
            return export.rows(table, wanted, rank.of_process(table, "globalPid"))[0]

        event_of = ("eventSyncId", "globalPid")
        call, device, stream, kind, *awaited_by = rows(
            SYNCS, "correlationId", "deviceId", "streamId", "syncType", *event_of
        )
        recorded_on, recording, *event_by = rows(EVENTS, "streamId", "correlationId", *event_of)
    # Events are numbered in each process.
    awaited, event = (number + ((process >> THREAD_BITS & THREAD) << 32) for number, process in (awaited_by, event_by))
    # Row -1, and the one behind the last event, is for none.
    order = np.argsort(event, kind="stable")
    place = np.searchsorted(event[order], awaited)
    event, recorded_on, recording = (np.append(column[order], -1) for column in (event, recorded_on, recording))
    found = (awaited_by[0] >= 0) & (event[place] == awaited)
    stream = np.where((stream >= 0) & (stream < _NO_STREAM), stream, -1)
    of_event = np.isin(kind, _EVENT_SYNCS)
    columns = (call, device, stream, *(np.where(of_event & found, of[place], -1) for of in (recorded_on, recording)))
    syncs: NDArray[np.int64] = np.column_stack(columns)[~of_event | found]
    return syncs


def _assemble(rank: _Rank, comm_patterns: Sequence[str], operators: bool) -> Trace:
    export, source, names = rank.export, rank.export.source, tuple(rank.names.numbers)
    file = Path(source.address).name
    kept = [key for key in _Part._fields[1:] if rank.more or key not in ("detail", "sequence")]
    columns = {key: np.concatenate([getattr(part, key) for part in rank.parts]) for key in kept}
    sizes = [len(part.start) for part in rank.parts]
    category = np.repeat(np.array([part.category for part in rank.parts], np.uint8), sizes)
    ids = unique(columns["thread"])
    thread = np.searchsorted(ids, columns["thread"])
    rows = EventColumns(
        columns["start"],
        columns["end"],
        category,
        columns["name"],
        thread.astype(np.int32),
        columns["correlation"],
        columns["device"].astype(np.int32),
        columns["stream"],
    )
    comm = is_communication(names, rows.name, category == Category.KERNEL, comm_patterns)
    good, end, impossible = validate_events(rows, np.zeros(len(category), np.bool_), comm)
    order = in_order(rows.start, end)
    order = order[good[order]]
    if not len(order):
        if not is_export(Path(source.container)):
            raise TraceError(f"{source.address}: is a database of another program, not of nsys export --type sqlite.")
        raise TraceError(
            f"{source.address}: holds no GPU work, calls or ranges of this process. Record it with: "
            "nsys profile --trace=cuda,nvtx python train.py"
        )
    number, world_size = _rank_of(rank)
    of_kernels = _comm(rank, rows, columns["thread"], comm, order)
    gpus, base = export.gpus(rank.process), export.epoch_ns()
    return Trace(
        path=sanitize(source.address),
        rank=number,
        world_size=world_size,
        start_ns=rows.start[order] + base,
        end_ns=end[order] + base,
        category=category[order],
        name=rows.name[order],
        names=names,
        thread=rows.thread[order],
        correlation=rows.correlation[order],
        device=rows.device[order],
        stream=rows.stream[order],
        comm=of_kernels,
        gpus=gpus,
        damage=tuple(replace(note, file=file) for note in impossible),
        notes=_notes(rank, file),
        host_name=export.host_name(),
        detail=columns["detail"][order].astype(np.int32) if rank.more else np.empty(0, np.int32),
        details=tuple(event_details(*args) if args else EventDetails() for args in rank.details) if rank.more else (),
        threads=tuple(map(_thread_name, ids.tolist())) if rank.more else (),
        operators=_operator_args(rank, rows, columns, order) if operators else None,
        memory=NO_MEMORY_EVENTS,
        steps_marked=False,
    )


def _operator_args(rank: _Rank, rows: EventColumns, columns: dict[str, Any], order: Int64) -> OperatorArgs:
    """Return the inputs of operators, as far as torch's ranges have them."""
    inputs = np.where(rows.category == Category.CPU_OP, columns["detail"], -1).astype(np.int32)
    table = tuple(map(_inputs, rank.details))
    return OperatorArgs(inputs[order], table, columns["sequence"][order], np.zeros(len(order), np.int32))


def _inputs(args: Any) -> OperatorInputs:
    return OperatorInputs(args[0].decode()) if args else OperatorInputs()


def _thread_name(number: int) -> str:
    return str(number & THREAD) if number >= 0 else f"stream {-1 - number & 0xFFFFFFFF}"


def _add_engine(rank: _Rank) -> None:
    """Add a node for each time in which torch's autograd threads launch work, where no range names the nodes.

    Without such ranges, the threads are all that tells backward from forward. The threads that launch take turns: the
    one that calls backward() waits meanwhile.
    """
    if any(name.startswith(_ENGINE) or _NODE.search(name) for name in rank.names.numbers):
        return
    texts = rank.export.few("ThreadNames", "globalTid", "nameId")
    ids = np.array([number for _, number in texts if isinstance(number, int)], np.int64)
    names = rank.export.texts(ids)
    engine = {thread: names[number] for thread, number in texts if _ENGINE_THREAD.match(names.get(number, ""))}
    calls = next(part for part in rank.parts if part.category is Category.LAUNCH)
    work = [part.correlation for part in rank.parts if part.category >= Category.KERNEL]
    launching = np.flatnonzero(np.isin(calls.correlation, np.concatenate(work)) & (calls.correlation > 0))
    launching = launching[np.argsort(calls.start[launching], kind="stable")]
    thread = calls.thread[launching]
    here = np.isin(thread, list(engine))
    if not here.any():
        return
    # A turn ends where another kind of thread launches; each engine thread has a node of its own in it.
    turn = np.cumsum(np.append(True, here[1:] != here[:-1]))[here]
    launching, thread = launching[here], thread[here]
    order = np.lexsort((calls.start[launching], thread, turn))
    launching, thread, turn = launching[order], thread[order], turn[order]
    first = np.flatnonzero(np.append(True, (turn[1:] != turn[:-1]) | (thread[1:] != thread[:-1])))
    start, end = calls.start[launching][first], np.maximum.reduceat(calls.end[launching], first)
    name = rank.names.of([f"{_ENGINE}nodes of {engine[number]}" for number in thread[first].tolist()])
    rank.notes.append(
        f"no ranges of autograd: what its threads launch ({listed(sorted({*engine.values()}))}) counts as backward. "
        "Record operators with torch.autograd.profiler.emit_nvtx() or nsys profile --pytorch=autograd-nvtx."
    )
    rank.add(Category.CPU_OP, start, end, name, thread[first])


def _comm(
    rank: _Rank, rows: EventColumns, thread_id: Int64, comm: NDArray[np.bool_], order: Int64
) -> dict[int, CommArgs]:
    """Return what NCCL's payloads say of the communication kernels, by the place of each in *order*."""
    if not any(message.fields for message in rank.messages):
        if rank.messages and comm.any():
            rank.notes.append(
                "NCCL's calls have no message sizes in this file. Export it again with its binary data to have them "
                "(nsys export --type sqlite --include-blobs true REPORT.nsys-rep)."
            )
        return {}
    calls = np.flatnonzero((rows.category == Category.LAUNCH) & (rows.correlation > 0))
    calls = calls[np.argsort(rows.correlation[calls], kind="stable")]
    kernels = order[comm[order]]
    place = np.searchsorted(rows.correlation[calls], rows.correlation[kernels])
    call = calls[np.minimum(place, len(calls) - 1)] if len(calls) else kernels
    known = rows.correlation[call] == rows.correlation[kernels]
    kernels, call = kernels[known], call[known]
    by_time = np.argsort(rows.start[call], kind="stable")
    launches = zip(
        kernels[by_time].tolist(),
        thread_id[call[by_time]].tolist(),
        rows.start[call[by_time]].tolist(),
        strict=True,
    )
    new = np.full(len(rows.start), -1, np.int64)
    new[order] = np.arange(len(order))
    return {int(new[kernel]): args for kernel, args in described(rank.messages, launches).items()}


def _rank_of(rank: _Rank) -> tuple[int | None, int | None]:
    """Return the rank and the number of ranks, from NCCL, MPI or the environment, as far as they are known."""
    if (found := own_rank(rank.messages)) and found[1] >= len(rank.export.ranks()):
        return found
    for thread, number in rank.export.few("MPI_RANKS", "globalTid", "rank"):
        if isinstance(thread, int) and isinstance(number, int) and rank.process == thread >> THREAD_BITS & THREAD:
            return number, None
    # The environment of one process: of several ranks, it is their launcher's.
    return rank.export.environment_rank() if rank.process is None else (None, None)


def _notes(rank: _Rank, file: str) -> tuple[Note, ...]:
    """Return what limits the figures of a file: what was inferred, and the tables and columns that it lacks."""
    missing = rank.export.missing
    if lacking := [name for name in missing if "." not in name or name.partition(".")[0] not in missing]:
        rank.notes.append(f"the export lacks {listed(lacking, 8)}; what they hold counts as not recorded.")
    return tuple(Note(text, file=file) for text in rank.notes)
