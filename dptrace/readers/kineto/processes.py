"""The processes of a file into which the files of several ranks were merged.

torch.profiler writes a file for each process, with a ``pid`` on each event: the process's on its calls, the index of
the GPU on its kernels. Ids of launches, streams and GPUs count within a process, so that a merged file has them twice::

    pid 1000        launch 1 ─┐          pid 1001        launch 1 ─┐       which kernel is whose?
    pid 0, stream 7 kernel 1 ◄┘          pid 0, stream 7 kernel 1 ◄┘

Whose an event is, its file says in one of these ways, the first that is there:

- a label of the rank on all pids: ``[TP00] 1000`` (SGLang), ``args.rank`` (TraceLens), a process name with a rank;
- the pid, and for what is on a GPU the order: one file's events after the other's;
- else the launches: ids that one process alone has, of the event itself or of others on its GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64, unique
from dptrace.core.notes import Note
from dptrace.core.units import listed, sanitize
from dptrace.errors import TraceError
from dptrace.readers.kineto.columns import EventSink, integers
from dptrace.readers.kineto.decode import Metadata, decode_whole
from dptrace.readers.kineto.event_schema import (
    COORDINATE,
    DAMAGE,
    SPAN,
    TAG,
    UNKNOWN,
    as_count,
    busy_processes,
    code_of,
)
from dptrace.readers.source import Source
from dptrace.readers.storage import file_identity
from dptrace.readers.trace import Category

_NOBODY = -1
"""The process of what belongs to none."""
_RANK = re.compile(r"\brank[-_ ]?\d{1,6}\b", re.IGNORECASE)
_OUTER = ("DP", "PP", "TP")
"""Coordinates, from the one that changes least from rank to rank."""
_NAMES = ("process_name", "process_labels")
_NEARLY_ALL = 0.9
"""Share of the launches of one process from which all that is on a GPU is that process's."""


class Processes(msgspec.Struct, frozen=True):
    """The ranks of a file, in ascending order."""

    ranks: tuple[int, ...]
    how: str
    """By what they are told apart."""
    of_event: NDArray[np.int16]
    """Of each event in the order of the file: the index of its rank, or -1 where it belongs to none."""

    @property
    def parts(self) -> tuple[str, ...]:
        """What each rank is called in a source."""
        return tuple(f"rank {rank}" for rank in self.ranks)


Read = Callable[[Source, EventSink], tuple[Metadata, Note | None]]
"""Fills columns with the events of a file: ``reader.read_into``."""


def processes_of(source: Source, read: Read) -> Processes:
    """Return the ranks of a file, which is read for it once.

    Raises:
        TraceError: it can't be read, or does not say which rank some of its GPU work belongs to.
    """
    whole = source.whole()
    return _kept(whole, file_identity(whole), read)


@lru_cache(maxsize=1)
def _kept(whole: Source, identity: object, read: Read) -> Processes:
    columns = _ProcessColumns()
    metadata, _ = read(whole, columns)
    return _split(whole, columns, metadata.distributed if isinstance(metadata.distributed, dict) else {})


def metadata_of(metadata: Metadata, rank: int) -> Metadata:
    """Return the metadata of a merged file, which are one rank's, with what holds for this rank."""
    info = metadata.distributed if isinstance(metadata.distributed, dict) else {}
    groups = info.get("pg_config")
    own = [group for group in groups if _has(group, rank)] if isinstance(groups, list) else []
    return msgspec.structs.replace(metadata, distributed={**info, "rank": rank, "pg_config": own})


def _has(group: Any, rank: int) -> bool:
    ranks = group.get("ranks") if isinstance(group, dict) else None
    return isinstance(ranks, list) and rank in map(as_count, ranks)


class EventsOfRank(EventSink):
    """Passes the events of one rank of a merged file on to other columns."""

    def __init__(self, source: Source, columns: EventSink, read: Read) -> None:
        found = processes_of(source, read)
        if source.part not in found.parts:
            raise TraceError(f"{source.address}: the file has changed and holds no such rank; open it again.")
        self.columns, self.rank = columns, found.ranks[found.parts.index(source.part)]
        self._wanted = found.of_event == found.parts.index(source.part)

    def decode(self, text: bytes) -> None:
        """Add the events of a JSON list that are this rank's, as :class:`EventSink` says."""
        events = _TEXTS.decode(text)
        wanted = self._wanted[self.events : self.events + len(events)].tolist()
        self.events += len(events)
        own = b",".join(event for event, chosen in zip(events, wanted, strict=True) if chosen)
        if own:
            decode_whole(own, b",", self.columns)

    def finish(self) -> None:
        """Pass on what was repaired, dropped and found of the whole file."""
        self.columns.repaired += self.repaired
        self.columns.dropped += self.dropped


# The columns that tell whose an event is.


class _Args(msgspec.Struct, frozen=True, gc=False):
    correlation: Any = -1
    rank: Any = None
    name: Any = ""
    labels: Any = ""


class _Event(msgspec.Struct, frozen=True, gc=False):
    ph: Any = ""
    cat: Any = None
    name: Any = ""
    pid: Any = None
    args: _Args | None = None


_EVENTS: msgspec.json.Decoder[list[_Event]] = msgspec.json.Decoder(list[_Event])
_TEXTS: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])
_NO_ARGS, _NO_EVENT = _Args(), _Event()


class _ProcessColumns(EventSink):
    """The process, category and launch of each event, of any phase, in the order of the file."""

    def __init__(self) -> None:
        self.pids = dict[str, int]()
        self.stated = dict[str, set[str]]()
        """Of each pid: the ranks that its events state."""
        self.names = dict[str, str]()
        """Of each pid: its names and labels."""
        self.pid, self.code, self.correlation = list[NDArray[np.int32]](), list[NDArray[np.uint8]](), list[Int64]()

    def decode(self, text: bytes) -> None:
        """Add the events of a JSON list, as :class:`EventSink` says; one that can't be decoded belongs to no rank."""
        whole = _TEXTS.decode(text)
        try:
            events = _EVENTS.decode(text)
        except DAMAGE:
            events = [_decoded(event) for event in whole]
        pids = [str(event.pid) for event in events]
        args = [event.args or _NO_ARGS for event in events]
        self.pid.append(np.array([self.pids.setdefault(pid, len(self.pids)) for pid in pids], np.int32))
        self.code.append(np.array([_code(event) for event in events], np.uint8))
        self.correlation.append(integers([one.correlation for one in args]))
        for pid, rank in {(pid, str(one.rank)) for pid, one in zip(pids, args, strict=True) if one.rank is not None}:
            self.stated.setdefault(pid, set()).add(rank)
        for event, pid, one in zip(events, pids, args, strict=True):
            if event.ph == "M" and event.name in _NAMES:
                self.names[pid] = f"{self.names.get(pid, '')} {one.name} {one.labels}"
        self.events += len(events)


def _decoded(text: msgspec.Raw) -> _Event:
    try:
        return _EVENTS.decode(b"[" + bytes(text) + b"]")[0]
    except DAMAGE:
        return _NO_EVENT


def _code(event: _Event) -> int:
    """Return the code of an event's category; SPAN for what stands around the events of a file."""
    if event.ph == "X":
        return code_of(event.cat) if isinstance(event.cat, str) else UNKNOWN
    return SPAN if event.ph == "M" else UNKNOWN


# Whose an event is.


def _split(source: Source, columns: _ProcessColumns, info: Mapping[str, Any]) -> Processes:
    pid, code = np.concatenate(columns.pid), np.concatenate(columns.code)
    texts = list(columns.pids)

    def counted(category: Category) -> dict[str, int]:
        return dict(zip(texts, np.bincount(pid[code == category], minlength=len(texts)).tolist(), strict=True))

    hosts = np.array([columns.pids[text] for text in busy_processes(counted)])
    labels = {number: label for number, label in enumerate(_label(text, columns) for text in texts) if label}
    labelled = all(host in labels for host in hosts.tolist())
    name_of = labels if labelled else {host: texts[host] for host in hosts.tolist()}
    first = hosts[np.argsort([int(((pid == host) & (code != SPAN)).argmax()) for host in hosts.tolist()])]
    names = list(dict.fromkeys(name_of[host] for host in first.tolist()))
    numbers = {name: number for number, name in enumerate(names)}
    process = np.array([numbers.get(name_of.get(number, ""), _NOBODY) for number in range(len(texts))], np.int16)
    of_event = process[pid]
    joined = _assign_devices(source, columns, of_event, len(names))
    if labelled:
        ranks, how = _labelled_ranks(names), f"by their labels ({listed([*map(sanitize, names)])})"
    else:
        ranks, how = _ranks_by_pid(names, as_count(info.get("rank")), as_count(info.get("world_size")), joined)
    order = sorted(range(len(names)), key=ranks.__getitem__)
    place = np.full(len(names) + 1, _NOBODY, np.int16)  # the last is for nobody's
    place[order] = np.arange(len(names))
    return Processes(tuple(sorted(ranks)), how, place[of_event])


def _label(pid: str, columns: _ProcessColumns) -> str:
    """Return what names the rank of a pid: a label before it, else what its events state, else its name."""
    if tag := TAG.match(pid):
        return tag[1]
    if len(stated := columns.stated.get(pid, set())) == 1:
        return f"rank {next(iter(stated))}"
    name = columns.names.get(pid, "")
    found = {rank.lower() for rank in _RANK.findall(name)} or {tag[0] for tag in TAG.findall(name)}
    return found.pop() if len(found) == 1 else ""


def _labelled_ranks(labels: list[str]) -> list[int]:
    """Return the rank that each label has, or else its place in the order of their coordinates."""
    coordinates = [{key.upper(): int(number) for key, number in re.findall(COORDINATE, label)} for label in labels]
    shared = [key for key in coordinates[0] if all(key in one for one in coordinates)]
    for key in ("RANK", "TP", *(shared if len(shared) == 1 else ())):
        if len({one[key] for one in coordinates if key in one}) == len(labels):
            return [one[key] for one in coordinates]
    order = sorted(
        range(len(labels)), key=lambda number: ([coordinates[number].get(key, 0) for key in _OUTER], labels[number])
    )
    return [order.index(number) for number in range(len(labels))]


def _ranks_by_pid(pids: list[str], own: int | None, world_size: int | None, joined: bool) -> tuple[list[int], str]:
    """Return the rank of each process, in the order of the pids unless what the file says of its rank contradicts.

    Args:
        pids: in the order of the file.
        own: the rank that the file says it is of: that of the first of the files that were merged.
        joined: whether their events follow each other, so that the first process is of this rank.
    """
    count, own = len(pids), own or 0
    order = sorted(range(count), key=lambda number: (not pids[number].isdigit(), len(pids[number]), pids[number]))
    how, lowest = "pids", own - (order.index(0) if joined else own % count)
    if lowest < 0:
        order, how, lowest = [*range(count)], "events", own
    if lowest + count > (world_size or lowest + count):
        lowest = 0
    shown = listed([sanitize(pids[number]) for number in order])
    return [lowest + order.index(number) for number in range(count)], f"in the order of their {how} ({shown})"


def _assign_devices(source: Source, columns: _ProcessColumns, of_event: NDArray[np.int16], count: int) -> bool:
    """Find the process of the events that have the pid of a GPU, as the module says; put it into *of_event*.

    Returns:
        Whether the events of the processes follow each other.

    Raises:
        TraceError: nothing says whose the work of the GPUs is.
    """
    pid, code = np.concatenate(columns.pid), np.concatenate(columns.code)
    on_device = (code == Category.KERNEL) | (code == Category.MEMORY)
    rest = np.flatnonzero(of_event == _NOBODY)
    begins = _begins(of_event, code, count)
    if begins is not None:
        of_event[rest] = np.searchsorted(begins, rest, side="right") - 1
        return True
    owner, pid = _owner_by_launch(np.concatenate(columns.correlation), of_event, code)[rest], pid[rest]
    known = owner != _NOBODY
    votes = np.bincount(pid[known] * count + owner[known], minlength=len(columns.pids) * count).reshape(-1, count)
    # What was launched before recording began has ids that another process may have launched since.
    of_gpu = np.where(votes.max(axis=1) > _NEARLY_ALL * votes.sum(axis=1), votes.argmax(axis=1), _NOBODY)[pid]
    of_event[rest] = np.where(of_gpu != _NOBODY, of_gpu, owner)
    working = unique(of_event[on_device]).tolist()
    if on_device[rest].any() and working != [*range(count)]:
        raise TraceError(
            f"{source.address}: holds {count} processes whose launches have equal ids, and nothing in it says which of "
            "them its GPU work belongs to. Open the ranks' own files, or merge them with the rank in each pid: "
            "[TP00] 1000."
        )
    return False


def _owner_by_launch(correlation: Int64, of_event: NDArray[np.int16], code: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Return for each event the one process that has a launch of its id; -1 where none or several have."""
    launch = np.flatnonzero((code == Category.LAUNCH) & (of_event != _NOBODY) & (correlation > 0))
    launch = launch[np.argsort(correlation[launch], kind="stable")]
    if not len(launch):
        return np.full(len(code), _NOBODY, np.int16)
    ids, process = correlation[launch], of_event[launch]
    first = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
    lowest, highest = np.minimum.reduceat(process, first), np.maximum.reduceat(process, first)
    owner, ids = np.where(lowest == highest, lowest, np.int16(_NOBODY)), ids[first]
    place = np.minimum(np.searchsorted(ids, correlation), len(ids) - 1)
    return np.where(ids[place] == correlation, owner[place], np.int16(_NOBODY))


def _begins(of_event: NDArray[np.int16], code: NDArray[np.uint8], count: int) -> Int64 | None:
    """Return where the events of each process begin in a file that joins files; None where they are mixed.

    Kineto writes a host's events first, then those of its GPUs, then the names of both, which end a file.
    """
    begins = [0]
    last = -1
    for process in range(count):
        own = np.flatnonzero((of_event == process) & (code != SPAN))
        if own[0] < last:
            return None
        if process:
            names = np.flatnonzero(code[last : own[0]] == SPAN)
            begins.append(last + int(names[0]) if len(names) else int(own[0]))
        last = int(own[-1])
    return np.array(begins, np.int64)
