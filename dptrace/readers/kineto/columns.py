"""Decoded events reduced to columns, chunk by chunk.

Each loop is a comprehension over one field, and arrays are built from lists with ``array``: this measures fastest, and
the reader must stay close to the speed of the JSON decoding. See benchmarks/.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from itertools import compress, islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.core.intervals import Int64
from dptrace.core.operators import PRODUCTS
from dptrace.core.units import sanitize
from dptrace.readers.communication import C10D_PREFIX, GLOO_PREFIX, METADATA_PREFIXES
from dptrace.readers.kineto.event_schema import (
    DAMAGE,
    MAX_RANKS,
    NO_ARGS,
    SPAN,
    SYNCHRONIZATION,
    UNKNOWN,
    Args,
    BasicArgs,
    CompleteEvent,
    ProcessLabel,
    as_count,
    code_of,
    event_decoder,
    is_out_of_range,
)
from dptrace.readers.trace import UNKNOWN_GROUP, Category, CommArgs, OperatorInputs

# The metadata of collectives: NCCL's, else the shapes of tensors; and the process group of each of gloo's events.

MAX_INPUT_BYTES = 20_000
"""Bytes of an operator's input that are kept; an optimizer's operator on lists of thousands of tensors has more."""
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
    """Return the metadata of the collective in an event's arguments; a number out of range counts as absent."""
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
            members if members and members < MAX_RANKS else 0,
            -1 if seq is None else seq,
            _parse_ranks(args.ranks, members or 0) if type(args.ranks) is str else (),
            args.description if type(args.description) is str else "",
            next((rank for rank in map(_rank, (args.source, args.target)) if rank >= 0), -1),
        )
    return _by_shapes(name, args)


def _has_odd_number(args: Args) -> bool:
    """Return whether a number in a collective's metadata is out of its range."""
    return (
        any(map(is_out_of_range, (args.in_elements, args.out_elements, args.seq)))
        or any(is_out_of_range(rank, MAX_RANKS) for rank in (args.group_size, args.source, args.target))
        or (type(args.ranks) is str and _has_odd_rank(args.ranks))
    )


@lru_cache(maxsize=1024)
def _has_odd_rank(text: str) -> bool:
    return any(is_out_of_range(rank, MAX_RANKS) for rank in _RANK.findall(text))


def _rank(value: object) -> int:
    """Return a rank; -1 for what is none."""
    number = as_count(value)
    return -1 if number is None or number >= MAX_RANKS else number


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
        return _rank(msgspec.json.decode(inputs)[2])
    except (*DAMAGE, TypeError, LookupError):
        return -1


def with_global_ranks(comm: dict[int, CommArgs], groups: Any, own: int | None) -> dict[int, CommArgs]:
    """Convert peers to global ranks where the file's list of groups is unambiguous, else drop them.

    Args:
        comm: collective metadata by event; peers without a group name are ranks in their group.
        groups: the ``pg_config`` of ``distributedInfo``: every group of this rank.
        own: the file's rank, which sends itself nothing; None where it is not recorded.
    """
    lists = [group.get("ranks") for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    members = [ranks for ranks in map(_counts, lists) if ranks is not None]

    def peer(args: CommArgs) -> int:
        ranks = {ranks[args.peer] for ranks in members if args.peer < len(ranks)} or {args.peer}
        others = ranks - {own} or ranks
        return others.pop() if len(others) == 1 else -1

    return {i: replace(a, peer=peer(a)) if a.peer >= 0 and not a.group else a for i, a in comm.items()}


_RANK = re.compile(r"-?\d+", re.ASCII)


@lru_cache(maxsize=1024)
def _parse_ranks(text: str, size: int) -> tuple[int, ...]:
    """Parse a group's ranks, none where one can't be; torch omits the middle of more than 30: ``[0, 2, ..., 126]``."""
    ranks = tuple(map(_rank, _RANK.findall(text)))
    if -1 in ranks:
        return ()
    if "..." not in text or len(ranks) < 3:
        return ranks
    even = range(ranks[0], ranks[-1] + 1, max(ranks[1] - ranks[0], 1))
    whole = len(even) == size < MAX_RANKS and tuple(even[: len(ranks) - 1]) == ranks[:-1]
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
    gloo_events = {event: thread for event, thread in thread_of.items() if comm[event].kind not in _PAIRS}
    messages = {event for event in thread_of if comm[event].kind in _PAIRS and comm[event].peer < 0}
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


# Conversion of a file's times, in µs as JSON spells them, to integer ns without rounding error.

# Below this many µs a double resolves three decimals: its spacing is 2^-10 µs, just under a nanosecond, so the
# fraction times 1000 rounds to the true value. Files of spring 2024 hold epoch µs with decimals (1.7e15): too large.
_EXACT_MICROSECONDS = float(2**43)


def fast_nanoseconds(microseconds: list[Any], exact: bool) -> Int64 | None:
    """Convert µs to ns where all are ints, or all floats that a double resolves; else return None."""
    try:
        whole = np.frombuffer(array("q", microseconds), np.int64)
        return whole * 1000 if len(whole) and -_LAST < whole.min() and whole.max() < _LAST else None
    except (TypeError, OverflowError):
        pass
    try:
        values = np.frombuffer(array("d", [] if exact else microseconds), np.float64)
    except (TypeError, OverflowError):
        return None
    # An int above the limit needs the exact path, too: it may have lost digits.
    return _from_doubles(values) if len(values) and np.abs(values).max() < _EXACT_MICROSECONDS else None


_LAST = 2**52
"""µs, about 146 years: no clock shows later times, and a sum of two in ns fits 64 bits."""


def _from_doubles(values: NDArray[np.float64]) -> Int64:
    whole: NDArray[np.float64] = np.floor(values)
    # The fraction separately: the product of the whole number and 1000 would be rounded to half a nanosecond.
    return whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)


def _is_no_duration(value: object) -> bool:
    """Return whether a duration is missing, or a text that is no number."""
    return value is None or (type(value) is str and not _NUMBER.fullmatch(value))


def nanoseconds(microseconds: list[Any], exact: bool) -> Int64:
    """Convert µs, as int, float, Decimal or text, to integer ns without rounding error."""
    if not microseconds or (quick := fast_nanoseconds(microseconds, exact)) is None:
        return _from_decimals(microseconds)
    return quick


def _from_decimals(microseconds: list[Any]) -> Int64:
    if any(type(value) is float and abs(value) >= _EXACT_MICROSECONDS for value in microseconds):
        raise NeedsDecimal
    if any(type(value) is str and not _NUMBER.fullmatch(value) for value in microseconds):
        raise ValueError("a text that is no number of JSON's")
    decimals = [Decimal(value) for value in microseconds]
    if any(not abs(value) < _LAST for value in decimals):
        raise OverflowError("a time beyond any clock")
    return np.array([int((value * 1000).to_integral_value()) for value in decimals], np.int64)


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)
"""A number in a text, spelled as JSON spells one: Python takes more, such as 1_0."""


class NeedsDecimal(Exception):
    """The chunk's times do not fit doubles: decode it again with decimals as text."""


_LAUNCHED = int(Category.LAUNCH)
"""First category whose events have a correlation."""
_ON_DEVICE = int(Category.KERNEL)
"""First category whose events have a device and a stream."""


class _Names:
    """A string table: ids of texts, from 0, in order of appearance."""

    def __init__(self) -> None:
        # A plain dictionary: one with __missing__ takes 1.5 times as long.
        self.numbers: dict[Any, int] = {}

    def ids(self, events: list[CompleteEvent]) -> list[int]:
        """Return the id of each event's name."""
        numbers = self.numbers
        try:
            return [numbers[event.name] for event in events]
        except KeyError:
            for name in dict.fromkeys([event.name for event in events]):
                self.number(name)
            return [numbers[event.name] for event in events]

    def number(self, name: object) -> int:
        """Return the id of one entry, a new one where needed."""
        return self.numbers.setdefault(name, len(self.numbers))


class _Threads:
    """Ids of pairs of process and thread, in the same way."""

    def __init__(self) -> None:
        self.numbers: dict[Any, dict[Any, int]] = {}
        self.pairs: list[tuple[Any, Any]] = []
        self._known: dict[tuple[Any, Any], int] = {}

    def ids(self, events: list[CompleteEvent]) -> list[int]:
        """Return the id of each event's thread."""
        numbers = self.numbers
        try:
            return [numbers[event.pid][event.tid] for event in events]
        except KeyError:
            return [self.number(event.pid, event.tid) for event in events]

    def number(self, pid: object, tid: object) -> int:
        """Return the id of one entry, a new one where needed."""
        threads = self.numbers.setdefault(pid, {})
        if tid not in threads:
            threads[tid] = self._number_of_whole(*map(_whole, (pid, tid)))
        return threads[tid]

    def _number_of_whole(self, pid: object, tid: object) -> int:
        """Return the same for ids that are numbers where their spelling is one: the same for 5, 5.0 and "5"."""
        number = self._known.setdefault((pid, tid), len(self.pairs))
        if number == len(self.pairs):
            self.pairs.append((pid, tid))
        return number


def _whole(identifier: object) -> object:
    number = as_count(identifier)
    return identifier if number is None else number


class _Memo(dict[Any, Any]):
    """Cache of a function of few distinct values."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __missing__(self, key: object) -> Any:
        return self.setdefault(key, self.function(key))

    def column(self, values: list[Any]) -> NDArray[np.int64]:
        """Look up each value; call the function for lists and objects, which are not hashable."""
        try:
            return np.array([self[value] for value in values], np.int64)
        except TypeError:
            return np.array([self.function(value) for value in values], np.int64)


_OUT_OF_RANGE = -2
"""In place of the id of a device or a stream that is out of range, until it is counted."""
_MAX_DEVICES = 1 << 16
"""Ids above it come from damage: no machine has as many."""


def _device(value: object) -> int:
    return _OUT_OF_RANGE if is_out_of_range(value, _MAX_DEVICES) else _integer(value)


def _stream(value: object) -> int:
    return _OUT_OF_RANGE if is_out_of_range(value) else _integer(value)


class _NeedsArgs(Exception):
    """An event of the chunk carries collective metadata, or inputs: decode the chunk again with all arguments."""


_COLLECTIVE, _PRODUCT = 1, 2
"""What is read of the events of a name: a collective's metadata, or a product's inputs; 0 is neither."""


def _what_is_read(name: str) -> int:
    return _COLLECTIVE if name.startswith(METADATA_PREFIXES) else _PRODUCT if name in PRODUCTS else 0


def _product_inputs(key: tuple[bytes, bytes, bytes]) -> OperatorInputs:
    """Return the inputs of a call as text; long lists are left out, of which no formula knows anything."""
    return OperatorInputs(*(raw.decode("utf-8", "replace") if len(raw) < MAX_INPUT_BYTES else "" for raw in key))


_COUNTS = (
    *("events", "kept", "dropped", "repaired", "out_of_range"),
    *("missing_start", "missing_duration", "lost", "unknown_phase", "unknown_category"),
)


@dataclass(slots=True)
class DecodedPart:
    """The columns of a part of a file, as another process sends them."""

    chunks: list[tuple[NDArray[Any], ...]] = field(default_factory=list)
    comm: dict[int, CommArgs] = field(default_factory=dict)
    """By index among the kept events of this part."""
    products: dict[int, OperatorInputs] = field(default_factory=dict)
    """In the same way."""
    names: list[Any] = field(default_factory=list)
    """Names that the sender's earlier parts do not hold; their ids continue those, as the threads' do."""
    threads: list[tuple[Any, Any]] = field(default_factory=list)
    counts: tuple[int, ...] = (0,) * len(_COUNTS)
    saw_last_event: bool | None = None
    unread: Counter[tuple[str, object]] = field(default_factory=Counter)
    processes: dict[object, str] = field(default_factory=dict)
    has_syncs: bool = False


_MIN_PYTHON_US = 20
"""Shorter Python functions are dropped: with_stack=True records millions of them, and none explains a delay."""


def long_or_not_python(events: list[CompleteEvent], category: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which events are not Python functions, or long ones; of one without a length, too, which is reported."""
    wanted: NDArray[np.bool_] = category != Category.PYTHON
    for i in np.flatnonzero(~wanted).tolist():
        length = -1.0
        with suppress(TypeError, ValueError, ArithmeticError):
            length = float(events[i].dur)  # type: ignore[arg-type]
        wanted[i] = not 0 <= length < _MIN_PYTHON_US
    return wanted


class EventSink(ABC):
    """Columns of some kind that :func:`~dptrace.readers.kineto.reader.read_into` fills, with counts."""

    events = 0
    """Events decoded, of any kind."""
    kept = 0
    """Events kept: with the fields and the categories that the columns need."""
    dropped = 0
    """Events that could not be decoded."""
    repaired = 0
    """Events whose text was damaged and repaired."""
    saw_last_event: bool | None = None
    """Whether the last complete event is the one that Kineto writes last, so that none is missing; None before any.

    In a file sorted by time that event comes first, and proves nothing.
    """

    @abstractmethod
    def decode(self, text: bytes) -> None:
        """Add the events of a JSON list.

        Raises:
            DAMAGE: the text is not a list of events; none was added.
        """


class Columns(EventSink):
    """The columns of a file while it is read, collected chunk by chunk."""

    args_type: type[BasicArgs] = BasicArgs
    """What ``args`` are decoded as; replaced by Args where the file's events carry collective metadata."""
    with_instants = False
    wanted = staticmethod(long_or_not_python)
    """Returns which events are kept of those in a category that is read."""

    def __init__(self) -> None:
        self.chunks: list[tuple[NDArray[Any], ...]] = []
        """Per chunk: start and length in ns, category, name, thread; for calls and device events only: correlation;
        for device events only: device and stream. Each in the smallest type that holds it."""
        self.comm: dict[int, CommArgs] = {}
        """Collective metadata, by index among the kept events."""
        self.missing_start = 0
        """Events dropped because they have no start time."""
        self.missing_duration = 0
        """Events of the host kept without a duration, which counts as 0."""
        self.lost = 0
        """Events of a device dropped because they have no duration: it worked, for a time that is not known."""
        self.out_of_range = 0
        """Events kept without a number that is out of its range."""
        self.unknown_phase = 0
        """Events dropped because of their ``ph``: none of those that are read or known to be unneeded."""
        self.unknown_category = 0
        """Complete events dropped because of their ``cat``, in the same way."""
        self.unread: Counter[tuple[str, object]] = Counter()
        """Their number by category and process."""
        self.processes: dict[object, str] = {}
        """Name and labels of each process, as far as the file gives them."""
        self._names, self._threads = _Names(), _Threads()
        self.products: dict[int, OperatorInputs] = {}
        """The inputs of the operators in PRODUCTS that the file records, by index among the kept events."""
        self._inputs = _Memo(_product_inputs)
        self._has_shapes: bool | None = None
        """Whether it records any; None before the first of these operators."""
        self._reads: NDArray[np.uint8] = np.zeros(0, np.uint8)
        """What is read of the events of each name, as far as the string table was searched: _COLLECTIVE, _PRODUCT."""
        self._codes, self._devices, self._streams = _Memo(code_of), _Memo(_device), _Memo(_stream)
        self._others_have_syncs = False
        self._exact = False
        """Whether this file's times have too many digits for a double."""
        self._sent = (0, 0)

    @property
    def has_syncs(self) -> bool:
        """Whether the text holds synchronizations, which no columns of figures have."""
        return self._others_have_syncs or SYNCHRONIZATION in self._codes

    @property
    def names(self) -> tuple[str, ...]:
        """The string table."""
        return tuple(map(str, self._names.numbers))

    @property
    def thread_ids(self) -> list[object]:
        """The file's id of each thread."""
        return [tid for _, tid in self._threads.pairs]

    @property
    def process_ids(self) -> list[object]:
        """The file's id of each thread's process."""
        return [pid for pid, _ in self._threads.pairs]

    def thread_names(self) -> tuple[str, ...]:
        """Return the file's id of each thread, as text."""
        return tuple(sanitize(str(tid)) for tid in self.thread_ids)

    def decode(self, text: bytes) -> None:
        """Add the events of a JSON list, as :class:`EventSink` says."""
        for _ in range(3):
            try:
                decoder = event_decoder(self.args_type, self._exact, self.with_instants)
                count, unknown_phase, complete, labels = decoder.decode(text)
                self._take(count, unknown_phase, complete)
                self._label(labels)
                return
            except NeedsDecimal:
                self._exact = True
            except _NeedsArgs:
                self.args_type = Args

    def _label(self, labels: list[ProcessLabel]) -> None:
        """Note what the file's metadata say of processes."""
        for label in labels:
            if text := label.text:
                pid = _whole(label.pid)
                self.processes[pid] = f"{self.processes[pid]} {text}" if pid in self.processes else text

    def more(self, order: Int64) -> dict[str, Any]:
        """Return what else a trace has of the events in *order*, by the name of its field."""
        return {}

    def _take(self, count: int, unknown_phase: int, complete: list[CompleteEvent]) -> None:
        codes = self._codes
        category = np.frombuffer(bytes([codes[event.cat] for event in complete]), np.uint8)
        all_categories = category
        unknown_category = int((category == UNKNOWN).sum())
        ends_whole = bool(category[-1] == SPAN) if complete else self.saw_last_event
        wanted = (category < SPAN) & self.wanted(complete, category)
        kept = complete if wanted.all() else list(compress(complete, wanted.tolist()))
        category = category if kept is complete else category[wanted]
        starts: list[Any] = [event.ts for event in kept]
        start, missing_start = fast_nanoseconds(starts, self._exact), 0
        if start is None:
            timed = [value is not None for value in starts]
            kept, category = list(compress(kept, timed)), category[timed]
            missing_start = len(starts) - len(kept)
            start = nanoseconds(list(compress(starts, timed)), self._exact)
        lengths: list[Any] = [event.dur for event in kept]
        length, missing_duration, lost = fast_nanoseconds(lengths, self._exact), 0, 0
        if length is None:
            unknown = np.array([_is_no_duration(value) for value in lengths], np.bool_)
            known = ~unknown | (category < _ON_DEVICE)
            kept, category, start = list(compress(kept, known.tolist())), category[known], start[known]
            lost, missing_duration = int((~known).sum()), int((unknown & known).sum())
            values = [0 if none else value for value, none in zip(lengths, unknown.tolist(), strict=True)]
            length = nanoseconds(list(compress(values, known.tolist())), self._exact)
        if kept:
            self._reduce(kept, start, length, category)
        if unknown_category:
            others = compress(complete, (all_categories == UNKNOWN).tolist())
            self.unread.update((event.cat or "", _whole(event.pid)) for event in others)
        self.missing_start += missing_start
        self.missing_duration += missing_duration
        self.lost += lost
        self.unknown_phase += unknown_phase
        self.unknown_category += unknown_category
        self.saw_last_event = ends_whole
        self.kept += len(kept)
        self.events += count

    def _reduce(self, kept: list[CompleteEvent], start: Int64, length: Int64, category: NDArray[np.uint8]) -> None:
        """Turn events into columns."""
        name, thread = _packed(self._names.ids(kept)), _packed(self._threads.ids(kept))
        launched = category >= _LAUNCHED
        args = [event.args or NO_ARGS for event in compress(kept, launched.tolist())]
        on_device = category[launched] >= _ON_DEVICE
        device_args = list(compress(args, on_device.tolist()))
        correlations = [a.correlation for a in args]
        correlation = integers(correlations)
        device = self._devices.column([a.device for a in device_args])
        stream = self._streams.column([a.stream for a in device_args])
        odd = (device == _OUT_OF_RANGE) | (stream == _OUT_OF_RANGE)
        device[device == _OUT_OF_RANGE] = stream[stream == _OUT_OF_RANGE] = -1
        reads = self._read_of(name)
        # Most events have a correlation, so that few are looked at.
        none = np.flatnonzero(correlation == -1).tolist()
        out_of_range = int(odd.sum()) + sum(is_out_of_range(correlations[i]) for i in none)
        has_metadata = (reads == _COLLECTIVE) & ~launched
        if any(collectives := [a.collective for a in device_args]):
            has_metadata[np.flatnonzero(launched)[on_device]] = list(map(bool, collectives))
        for i in np.flatnonzero(has_metadata).tolist():
            event_args, event_name = kept[i].args or NO_ARGS, str(kept[i].name)
            if event_args.collective or event_name.startswith((GLOO_PREFIX, C10D_PREFIX)):
                if not isinstance(event_args, Args):
                    raise _NeedsArgs
                comm = comm_args(event_name, event_args)
                out_of_range += bool(event_args.collective) and _has_odd_number(event_args)
                if comm.elements or event_args.collective or event_name.startswith(GLOO_PREFIX):
                    self.comm[self.kept + i] = comm
        if self._has_shapes is not False:
            self._take_products(kept, np.flatnonzero((reads == _PRODUCT) & (category == Category.CPU_OP)))
        rest = map(_smallest, (correlation, device, stream))
        self.chunks.append((start, _smallest(length), category, name, thread, *rest))
        self.out_of_range += out_of_range

    def _take_products(self, kept: list[CompleteEvent], events: Int64) -> None:
        """Keep the inputs of operators; where the first ones have none, the file records no shapes."""
        if not len(events):
            return
        if not all(isinstance(kept[i].args or NO_ARGS, Args) for i in events.tolist()):
            raise _NeedsArgs
        for i in events.tolist():
            args: Any = kept[i].args or NO_ARGS
            if args.dims:
                self.products[self.kept + i] = self._inputs[bytes(args.dims), bytes(args.types), bytes(args.concrete)]
        self._has_shapes = self._has_shapes or bool(self.products)
        if not (self._has_shapes or self.comm):
            self.args_type = type(self).args_type

    def _read_of(self, name: NDArray[Any]) -> NDArray[np.uint8]:
        if more := len(self._names.numbers) - len(self._reads):
            fresh = map(str, islice(self._names.numbers, len(self._reads), None))
            self._reads = np.append(self._reads, np.fromiter(map(_what_is_read, fresh), np.uint8, more))
        of_events: NDArray[np.uint8] = self._reads[name]
        return of_events

    def take_arrays(self) -> list[NDArray[Any]]:
        """Return the columns of all events, and drop them here.

        Returns:
            start and end in ns, category, name, thread, correlation, device, stream; the last three are -1 for
            categories without them. All but the times are in the smallest integer type that holds them.
        """
        parts = list(zip(*self.chunks, strict=True))
        self.chunks = []
        parts.reverse()
        start: Int64 = np.concatenate(parts.pop())
        end: Int64 = np.concatenate(parts.pop(), dtype=np.int64)
        np.add(start, end, out=end)
        category, name, thread = (np.concatenate(parts.pop()) for _ in range(3))
        columns = [start, end, category, name, thread]
        for first in (_LAUNCHED, _ON_DEVICE, _ON_DEVICE):
            some = np.concatenate(parts.pop())
            columns.append(np.full(len(start), -1, some.dtype))
            columns[-1][category >= first] = some
        return columns

    def part(self) -> DecodedPart:
        """Return what was added since the last call, and drop those events here."""
        sent, threads = self._sent
        names, counts = list(islice(self._names.numbers, sent, None)), tuple(getattr(self, one) for one in _COUNTS)
        columns = self.chunks, self.comm, self.products, names, self._threads.pairs[threads:], counts
        part = DecodedPart(*columns, self.saw_last_event, self.unread, self.processes, self.has_syncs)
        self._sent = (len(self._names.numbers), len(self._threads.pairs))
        self.chunks, self.comm, self.products, self.saw_last_event = [], {}, {}, None
        self.unread, self.processes = Counter(), {}
        for count in _COUNTS:
            setattr(self, count, 0)
        return part

    def add(self, part: DecodedPart, sender: IdMap) -> None:
        """Append the columns that another process decoded from the text that follows."""
        sender.names += map(self._names.number, part.names)
        sender.threads += [self._threads.number(pid, tid) for pid, tid in part.threads]
        names, threads = np.array(sender.names, np.int32), np.array(sender.threads, np.int32)
        for start, length, category, name, thread, *rest in part.chunks:
            self.chunks.append((start, length, category, names[name], threads[thread], *rest))
        self.comm.update((self.kept + place, args) for place, args in part.comm.items())
        self.products.update((self.kept + place, inputs) for place, inputs in part.products.items())
        for count, more in zip(_COUNTS, part.counts, strict=True):
            setattr(self, count, getattr(self, count) + more)
        self.unread.update(part.unread)
        for pid, text in part.processes.items():
            self.processes[pid] = f"{self.processes[pid]} {text}" if pid in self.processes else text
        self.saw_last_event = self.saw_last_event if part.saw_last_event is None else part.saw_last_event
        self._others_have_syncs |= part.has_syncs


@dataclass(slots=True)
class IdMap:
    """Our ids of another process's names and threads, by that process's ids."""

    names: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)


def _packed(numbers: list[int]) -> NDArray[Any]:
    """Make a column of 16 bits where they suffice, else of 32."""
    try:
        return np.frombuffer(array("h", numbers), np.int16)
    except OverflowError:
        return np.frombuffer(array("i", numbers), np.int32)


def _smallest(column: NDArray[Any]) -> NDArray[Any]:
    """Reduce a column to 16 or 32 bits where that loses nothing."""
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    small = next((size for size in (16, 32) if -(1 << size - 1) <= low and high < 1 << size - 1), 64)
    return column.astype(f"i{small // 8}")


def integers(values: list[Any]) -> NDArray[np.int64]:
    """Make a column; whole numbers may be written as 5.0 or "5", and what is no 64-bit integer becomes -1."""
    try:
        return np.frombuffer(array("q", values), np.int64)
    except (TypeError, OverflowError):
        return np.array([_integer(value) for value in values], np.int64)


def _integer(value: object) -> int:
    number = as_count(value)
    return -1 if number is None else number
