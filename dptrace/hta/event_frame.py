"""Read all events of a trace into a pandas frame, for tools that need more than the split does.

The frame equals that of Holistic Trace Analysis's own loader: the same rows, columns, dtypes and symbols. It costs a
fraction, since the file is decoded in pieces (``kineto.reader``) and no event becomes a dictionary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from operator import attrgetter, is_not, ne
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dptrace.core.notes import Note
from dptrace.core.subprocess_pool import collection_paused
from dptrace.core.units import sanitize
from dptrace.errors import DptraceError, TraceError
from dptrace.load.open import assign_ranks, collect_results, raise_if_required, split_ranks
from dptrace.load.rank_file import refuse_damage
from dptrace.readers.discovery import Sources
from dptrace.readers.kineto.columns import EventSink
from dptrace.readers.kineto.decode import Metadata
from dptrace.readers.kineto.event_schema import code_of
from dptrace.readers.kineto.reader import damage_of, read_into, refuse_several
from dptrace.readers.source import Source
from dptrace.readers.trace import Category


class ArgColumn(NamedTuple):
    """One of an event's ``args``, as a column."""

    column: str
    key: str
    default: object
    """Value for events without this argument; neither a list nor a dictionary."""


@dataclass(frozen=True, slots=True)
class EventFrame:
    """One rank's events, in the order of the file."""

    source: Source
    rank: int | None
    """From ``distributedInfo``; None where the file does not contain it."""
    frame: pd.DataFrame
    """A row for each event that has a category and a duration. The index and the column ``index`` are its position in
    the file; ``cat`` and ``name`` are indices into ``symbols``; ``ts`` and ``dur`` are µs, as in the file."""
    symbols: list[str]
    metadata: dict[str, Any]
    """The file's metadata, as far as dptrace reads it."""
    damage: tuple[Note, ...]
    """What was truncated, repaired or dropped while reading, a sentence each."""

    @property
    def path(self) -> str:
        """The file's address, to be shown."""
        return sanitize(self.source.address)


class _Event(msgspec.Struct, frozen=True, gc=False):
    cat: str | None = None
    name: str | int | float | None = ""
    pid: Any = None
    tid: Any = None
    ts: int | float | None = None
    dur: int | float | None = None


_KEYS = ("cat", "name", "pid", "tid", "ts", "dur")
_RAW: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])

_category, _name, _pid, _tid, _start, _length, _args = (
    attrgetter(field) for field in ("cat", "name", "pid", "tid", "ts", "dur", "args")
)


class _Counted(msgspec.Struct, frozen=True, gc=False):
    cat: str | None = None
    args: Any = None


_COUNTERS = "cuda_profiler_range"
"""CUPTI's category: each argument of its events is a hardware counter."""
_COUNTED: msgspec.json.Decoder[list[_Counted]] = msgspec.json.Decoder(list[_Counted])


class _Numbered(dict[Any, int]):
    """Number keys from 0, in the order in which they are first looked up."""

    def __missing__(self, key: object) -> int:
        return self.setdefault(key, len(self))


class EventFrameColumns(EventSink):
    """The columns of a file while it is read; ``reader.read_into`` fills them."""

    def __init__(self, arguments: Sequence[ArgColumn]) -> None:
        fields = [(f"a{i}", Any, msgspec.field(default=a.default, name=a.key)) for i, a in enumerate(arguments)]
        kind = msgspec.defstruct("Args", fields, frozen=True, gc=False)
        event = msgspec.defstruct("Event", [("args", kind | None, None)], bases=(_Event,), frozen=True, gc=False)
        self.decoder: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]
        self.absent = kind()
        self.arguments = {a.column: (attrgetter(f"a{i}"), list[Any]()) for i, a in enumerate(arguments)}
        self.places: list[NDArray[np.int64]] = []
        self.starts: list[NDArray[Any]] = []
        self.lengths: list[NDArray[Any]] = []
        self.codes: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        self.processes: list[Any] = []
        self.threads: list[Any] = []
        self.kinds: dict[str, set[type]] = {column: set() for column in ("ts", "dur", "pid", "tid")}
        """The types of the values of all events, dropped ones included: they determine a column's dtype."""
        self.categories, self.names = _Numbered(), _Numbered()
        self.order: list[str] = []
        """The keys of an event, in the order in which they first appear in the file."""
        self.counters: dict[int, dict[str, Any]] = {}
        """CUPTI's counters, by the event's position in the file."""

    def decode(self, text: bytes) -> None:
        """Add the events of a JSON list, as :class:`~dptrace.readers.kineto.columns.EventSink` says."""
        events = self.decoder.decode(text)
        count = len(events)
        categories, lengths, starts = (list(map(get, events)) for get in (_category, _length, _start))
        last = next(filter(None, reversed(categories)), None)
        self.saw_last_event = self.saw_last_event if last is None else last == "Trace"
        keep = np.fromiter(map(is_not, lengths, repeat(None)), np.bool_, count)
        for column in (categories, starts):
            keep &= np.fromiter(map(is_not, column, repeat(None)), np.bool_, count)
        keep &= np.fromiter(map(ne, categories, repeat("Trace")), np.bool_, count)
        chosen = keep.tolist()
        kept = list(compress(events, chosen))
        start, length = _numbers(compress(starts, chosen)), _numbers(compress(lengths, chosen))
        self._append(kept, start, length)
        for key, values in (("ts", starts), ("dur", lengths), ("pid", map(_pid, events)), ("tid", map(_tid, events))):
            self.kinds[key].update(map(type, values))
        self.places.append(np.flatnonzero(keep) + self.events)
        if len(self.order) < len(_KEYS):
            self._find_order(text)
        if _COUNTERS in categories:
            counted = (
                (place, e.args) for place, e in enumerate(_COUNTED.decode(text), self.events) if e.cat == _COUNTERS
            )
            self.counters.update((place, args) for place, args in counted if isinstance(args, dict))
        self.events += count
        self.kept += len(kept)

    def _find_order(self, text: bytes) -> None:
        for event in _RAW.decode(text):
            self.order += [key for key in msgspec.json.decode(event) if key in _KEYS and key not in self.order]
            if len(self.order) == len(_KEYS):
                return

    def count_by_process(self, category: Category) -> Counter[str]:
        """Return how many events of a category each process has."""
        wanted = [number for name, number in self.categories.items() if code_of(str(name)) == category]
        codes = np.concatenate([codes for codes, _ in self.codes])
        return Counter(map(str, compress(self.processes, np.isin(codes, wanted).tolist())))

    def _append(self, kept: list[Any], start: NDArray[Any], length: NDArray[Any]) -> None:
        self.starts.append(start)
        self.lengths.append(length)
        category = np.fromiter(map(self.categories.__getitem__, map(_category, kept)), np.int32, len(kept))
        name = np.fromiter(map(self.names.__getitem__, map(_name, kept)), np.int32, len(kept))
        self.codes.append((category, name))
        self.processes.extend(map(_pid, kept))
        self.threads.extend(map(_tid, kept))
        args = [args or self.absent for args in map(_args, kept)]
        for get, values in self.arguments.values():
            values.extend(map(get, args))


def _numbers(values: Iterator[Any]) -> NDArray[Any]:
    array: NDArray[Any] = np.array(list(values) or np.empty(0, np.int64))
    if array.dtype.kind not in "if":
        raise OverflowError("time out of range")
    return array


def read_event_frame(file: Source | Path, arguments: Sequence[ArgColumn], round_out: bool = True) -> EventFrame:
    """Read one rank's events with the *arguments* as columns.

    Args:
        round_out: round fractional times to whole µs, starts up and ends down, as HTA's loader does unless
            ``HTA_DISABLE_NS_ROUNDING`` is 1.

    Raises:
        TraceError: torch.profiler did not write the file, or no event of it can be read.
    """
    source = Source.of(file)
    columns = EventFrameColumns(arguments)
    with collection_paused():
        metadata, cut_off = read_into(source, columns)
        if not columns.kept:
            raise TraceError(
                f"{source.address}: contains no event with a category and a duration. {cut_off or ''}".strip()
            )
        refuse_several(source, columns.count_by_process)
        symbols, frame = _frame(columns, round_out)
    info = metadata.distributed
    rank = info.get("rank") if isinstance(info, dict) else None
    return EventFrame(
        source=source,
        rank=rank if type(rank) is int and 0 <= rank < 1 << 31 else None,
        frame=frame,
        symbols=symbols,
        metadata=_metadata_fields(metadata),
        damage=(
            *damage_of(source.name, columns, cut_off),
            *(Note(sentence, file=source.name) for sentence in metadata.damage),
        ),
    )


def _metadata_fields(metadata: Metadata) -> dict[str, Any]:
    """Return the metadata under the file's names."""
    known_metadata = {
        "baseTimeNanoseconds": metadata.base,
        "distributedInfo": metadata.distributed,
        "deviceProperties": metadata.devices or metadata.devices_2021,
    }
    return {key: value for key, value in known_metadata.items() if value is not None}


def _frame(columns: EventFrameColumns, round_out: bool) -> tuple[list[str], pd.DataFrame]:
    place = np.concatenate(columns.places)
    index = pd.Index(place)
    symbols, category, name = _symbols(columns)
    data: dict[str, Any] = {
        "cat": category,
        "name": name,
        "pid": _column(columns.processes, columns.kinds["pid"], index),
        "tid": _column(columns.threads, columns.kinds["tid"], index),
        **_times(columns, round_out),
    }
    order = dict.fromkeys((*columns.order, *_KEYS, "end"))
    data = {
        "index": place,
        **{key: data[key] for key in order if key in data},
        **{column: _column(values, set(map(type, values)), index) for column, (_, values) in columns.arguments.items()},
    }
    for counter in sorted({name for args in columns.counters.values() for name in args} - data.keys()):
        values = [columns.counters[at].get(counter, -1) if at in columns.counters else -1 for at in place.tolist()]
        data[counter] = _column(values, set(map(type, values)), index)
    frame = pd.DataFrame(data, index=index, copy=False)
    if "stream" in frame:
        # The stream of a HIP copy's launch is an address in hex.
        frame["stream"] = pd.to_numeric(frame["stream"], errors="coerce").fillna(-1).astype(int)
    for column in frame.columns.difference(["cat", "name"], sort=False):
        if frame[column].dtype.kind == "i":
            frame[column] = pd.to_numeric(frame[column], downcast="integer")
    return symbols, frame


def _symbols(columns: EventFrameColumns) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Number categories and names together, in the same order as HTA's loader in the same process."""
    categories, names = list(map(str, columns.categories)), list(map(str, columns.names))
    symbols = list(set(categories).union(set(names)))
    number = {symbol: i for i, symbol in enumerate(symbols)}
    codes = []
    for texts, parts in zip((categories, names), zip(*columns.codes, strict=True), strict=True):
        table = np.array([number[text] for text in texts], np.int64)
        codes.append(table[np.concatenate(parts)])
    return symbols, codes[0], codes[1]


def _times(columns: EventFrameColumns, round_out: bool) -> dict[str, NDArray[Any]]:
    start, length = np.concatenate(columns.starts), np.concatenate(columns.lengths)
    none, fraction = type(None), float
    start_absent, length_absent = none in columns.kinds["ts"], none in columns.kinds["dur"]
    if length_absent or fraction in columns.kinds["dur"]:
        length = length.astype(np.float64)
    if fraction not in columns.kinds["ts"] and not start_absent:
        return {"ts": start, "dur": length}
    start = start.astype(np.float64)
    if not round_out:
        return {"ts": start, "dur": length}
    end = np.floor(start + length)
    start = np.ceil(start)
    if not start_absent:
        start = start.astype(np.int64)
        end = end if length_absent else end.astype(np.int64)
    return {"ts": start, "dur": end - start, "end": end}


def _column(values: list[Any], kinds: set[type], index: pd.Index[int]) -> Any:
    """Return a column with the dtype that pandas infers from values of these types."""
    if kinds == {int}:
        return np.array(values)
    if kinds <= {int, float}:
        return np.array(values, np.float64)
    objects = np.fromiter(values, object, len(values))
    # A Series keeps its dtype; pandas would infer that of an array again.
    series = pd.Series(objects, index, dtype=object)
    return series if len(kinds) > 1 and not kinds <= {int, float, type(None)} else series.infer_objects()


# Read the files of a run into event frames, by rank.


def read_ranks(
    found: Sources, arguments: Sequence[ArgColumn], round_out: bool, strict: bool = False
) -> tuple[dict[int, EventFrame], list[str]]:
    """Read the files that ``discovery.find`` found.

    Args:
        strict: treat damage, and a file that is not a trace, as an error instead of a note.

    Returns:
        The frames by rank, in order, and a sentence on what was missing, left out, dropped or inferred.

    Raises:
        DptraceError: a file that the user named cannot be read, no file can, or two files have the same rank.
    """
    results = dict[int, EventFrame | DptraceError]()
    while unread := [index for index in range(len(found.files)) if index not in results]:
        for index in unread:
            try:
                results[index] = frames = read_event_frame(found.files[index], arguments, round_out)
                if strict:
                    refuse_damage(frames.path, frames.damage)
            except DptraceError as error:
                raise_if_required(found, index, error, strict)
                results[index] = error
        found, results = split_ranks(found, results)
    files, notes = collect_results(found, results)
    ranks, guesses = assign_ranks([(file.path, file.rank) for file in files])
    notes += [str(note) for note in (*(note for file in files for note in file.damage), *guesses)]
    return dict(sorted(zip(ranks, files, strict=True), key=lambda pair: pair[0])), notes
