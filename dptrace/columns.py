"""Events as the file spells them, reduced to columns chunk by chunk, with no Python loop over them.

What looks like a detour here (``map`` over C functions, dictionaries that number what they have not seen) is what
keeps the reader close to the speed of the decoding itself: see benchmarks/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import compress, islice, repeat
from operator import attrgetter, is_not
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.intervals import Int64
from dptrace.trace import Category, CommArgs

__all__ = ["DAMAGE", "Columns"]

DAMAGE = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError)
"""What decoding and reducing raise on text that is no event."""

_CATEGORIES = {
    # Categories of schema version 1 as torch writes them since 2022, then the spellings of 2021.
    "cpu_op": Category.CPU_OP,
    "user_annotation": Category.ANNOTATION,
    "cuda_runtime": Category.LAUNCH,
    "cuda_driver": Category.LAUNCH,
    "hip_runtime": Category.LAUNCH,
    "hip_driver": Category.LAUNCH,
    "xpu_runtime": Category.LAUNCH,
    "xpu_driver": Category.LAUNCH,
    "privateuse1_runtime": Category.LAUNCH,
    "privateuse1_driver": Category.LAUNCH,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMORY,
    "gpu_memset": Category.MEMORY,
    "operator": Category.CPU_OP,
    "runtime": Category.LAUNCH,
    "memcpy": Category.MEMORY,
    "memset": Category.MEMORY,
}
_UNUSED = 255
_SPAN = 254
"""Kineto's own event over the whole recording, which it writes after all others."""

_ELEMENT_BYTES = {
    # Kineto writes NCCL metadata with c10's names (BFloat16), and Input types in C++'s (c10::BFloat16, long int).
    **dict.fromkeys(("byte", "char", "bool", "unsigned char", "signed char", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "quint8", "qint8"), 1),
    **dict.fromkeys(("short", "short int", "half", "bfloat16"), 2),
    **dict.fromkeys(("int", "float"), 4),
    **dict.fromkeys(("long", "long int", "double", "complexfloat"), 8),
    "complexdouble": 16,
}

# Below this many µs a double tells three decimals apart: its spacing is 2^-10 µs, just under a nanosecond, so the
# fraction, times 1000, rounds to the true one. Files of spring 2024 carry epoch µs with decimals (1.7e15): too many.
_EXACT_MICROSECONDS = float(2**43)


class _Args(msgspec.Struct, frozen=True, gc=False):
    # Of any type, since an odd argument must not cost its event: what is not of the type meant is taken for absent.
    correlation: Any = -1
    device: Any = None
    stream: Any = None
    collective: Any = msgspec.field(default="", name="Collective name")
    in_elements: Any = msgspec.field(default=0, name="In msg nelems")
    out_elements: Any = msgspec.field(default=0, name="Out msg nelems")
    group_size: Any = msgspec.field(default=0, name="Group size")
    dtype: Any = ""
    group: Any = msgspec.field(default="", name="Process Group Name")
    seq: Any = msgspec.field(default=-1, name="Seq")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")


_NO_ARGS = _Args()


class _Event(msgspec.Struct, frozen=True, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | int | float | None = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: int | float | str | None = None
    dur: int | float | None = None
    args: _Args | None = _NO_ARGS


class _ExactEvent(_Event, frozen=True, gc=False):
    ts: int | Decimal | None = None  # type: ignore[assignment]
    dur: int | Decimal | None = None  # type: ignore[assignment]


_EVENTS = msgspec.json.Decoder(list[_Event])
_EXACT_EVENTS = msgspec.json.Decoder(list[_ExactEvent])
_phase, _category, _name, _pid, _tid, _start, _length, _args = (
    attrgetter(field) for field in ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
)
_correlation, _device, _stream, _collective = (
    attrgetter(field) for field in ("correlation", "device", "stream", "collective")
)


class _Numbered(dict[Any, int]):
    """Number what is asked for, from 0, in the order of asking."""

    def __missing__(self, key: object) -> int:
        return self.setdefault(key, len(self))


class _Told(dict[Any, int]):
    """Remember what a function says of each of few values."""

    def __init__(self, function: Callable[[Any], int]) -> None:
        self.function = function

    def __missing__(self, key: object) -> int:
        return self.setdefault(key, self.function(key))

    def column(self, values: list[Any], kind: Any) -> NDArray[Any]:
        """Look up each value; a list or an object, which can't be remembered, is asked about by itself."""
        try:
            return np.fromiter(map(self.__getitem__, values), kind, len(values))
        except TypeError:
            return np.fromiter(map(self.function, values), kind, len(values))


def _code(category: str | None) -> int:
    if category == "Trace":
        return _SPAN
    return _CATEGORIES.get(category.lower(), _UNUSED) if category is not None else _UNUSED


def _small(device: object) -> int:
    return device if type(device) is int and 0 <= device < 1 << 16 else -1


def _whole(stream: object) -> int:
    # A HIP copy's launch gives its stream as an address in hex; only device events give a number.
    return stream if type(stream) is int and abs(stream) < 1 << 62 else -1


class Columns:
    """The columns of a file while it is read, a chunk's arrays at a time."""

    def __init__(self) -> None:
        self.chunks: list[tuple[NDArray[Any], ...]] = []
        """Of each chunk: start and end in ns, category, name, thread, correlation, device, stream."""
        self.comm: dict[int, CommArgs] = {}
        """What the few events of collectives say, by their place among all that stay."""
        self.events = 0
        """Events decoded, of any kind."""
        self.kept = 0
        """Those that stay: complete events of the known categories."""
        self.dropped = 0
        """Events that could not be decoded."""
        self.whole = False
        """Whether Kineto's last event was seen, so that no event is missing."""
        self.mended = 0
        """Events whose texts were damaged, and mended."""
        self._names, self._threads = _Numbered(), _Numbered()
        self._gloo: list[int] = []
        self._searched = 0
        """How much of the string table was searched for gloo's names."""
        self._codes, self._devices, self._streams = _Told(_code), _Told(_small), _Told(_whole)

    @property
    def names(self) -> tuple[str, ...]:
        """Give the string table."""
        return tuple(map(str, self._names))

    def decode(self, text: bytes) -> None:
        """Take the events of a JSON list.

        Raises:
            DAMAGE: the text is no list of events; nothing of it was taken.
        """
        try:
            self._take(_EVENTS.decode(text))
        except _NeedsDecimal:
            self._take(_EXACT_EVENTS.decode(text))

    def _take(self, events: Sequence[_Event]) -> None:
        count = len(events)
        category = np.fromiter(map(self._codes.__getitem__, map(_category, events)), np.uint8, count)
        complete = np.fromiter(map("X".__eq__, map(_phase, events)), np.bool_, count)
        timed = np.fromiter(map(is_not, map(_start, events), repeat(None)), np.bool_, count)
        keep = (category < _SPAN) & complete & timed
        self.whole = self.whole or bool((category == _SPAN).any())
        kept = list(compress(events, keep.tolist()))
        if kept:
            columns, comm = self._reduce(kept)
            self.chunks.append((*columns[:2], category[keep], *columns[2:]))
            self.comm.update(comm)
        self.kept += len(kept)
        self.events += count

    def _reduce(self, kept: list[_Event]) -> tuple[list[NDArray[Any]], dict[int, CommArgs]]:
        """Turn events into columns, all but the category."""

        def column(values: Iterable[int], kind: Any) -> NDArray[Any]:
            return np.fromiter(values, kind, len(kept))

        start = _nanoseconds(list(map(_start, kept)))
        length = _nanoseconds([length or 0 for length in map(_length, kept)])
        args = [args or _NO_ARGS for args in map(_args, kept)]
        columns = [
            start,
            start + length,
            column(map(self._names.__getitem__, map(_name, kept)), np.int32),
            column(map(self._threads.__getitem__, zip(map(_pid, kept), map(_tid, kept), strict=True)), np.int32),
            _integers(list(map(_correlation, args))),
            self._devices.column(list(map(_device, args)), np.int32),
            self._streams.column(list(map(_stream, args)), np.int64),
        ]
        told = np.flatnonzero(column(map(bool, map(_collective, args)), np.bool_) | self._is_gloo(columns[2]))
        found = {self.kept + int(i): _comm_args(str(kept[i].name), args[i]) for i in told}
        return columns, found

    def _is_gloo(self, name: NDArray[np.int32]) -> NDArray[np.bool_]:
        fresh = islice(self._names.items(), self._searched, None)
        self._gloo += [number for text, number in fresh if str(text).startswith(_GLOO)]
        self._searched = len(self._names)
        return np.isin(name, self._gloo) if self._gloo else np.zeros(len(name), np.bool_)


_GLOO = "gloo:"


def _nanoseconds(microseconds: list[Any]) -> Int64:
    """Turn µs, as int, float or Decimal, into whole ns without rounding error."""
    values: NDArray[Any] = np.array(microseconds)
    if values.dtype.kind == "i":
        if np.abs(values).max(initial=0) >= 2**52:
            raise OverflowError("a time beyond any clock")
        return values.astype(np.int64) * 1000
    if values.dtype.kind == "f" and not any(type(value) is int and value > 2**43 for value in microseconds):
        if np.abs(values).max(initial=0) >= _EXACT_MICROSECONDS:
            raise _NeedsDecimal
        whole: NDArray[np.float64] = np.floor(values)
        # The fraction apart: the product of the whole number with 1000 would be rounded to half a nanosecond.
        return whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)
    if any(type(value) is float and abs(value) >= _EXACT_MICROSECONDS for value in microseconds):
        raise _NeedsDecimal
    exact = [Decimal(value) * 1000 for value in microseconds]
    if any(not abs(value) < 2**63 for value in exact):
        raise OverflowError("a time beyond any clock")
    return np.fromiter((int(value.to_integral_value()) for value in exact), np.int64)


class _NeedsDecimal(Exception):
    """The chunk's times do not fit doubles: decode it again with their decimal text."""


def _integers(values: list[Any]) -> NDArray[np.int64]:
    """Make a column; what is no whole number of 64 bits is -1."""
    array = np.array(values)
    if array.dtype == np.int64:
        return array
    return np.fromiter((value if _is_count(value) else -1 for value in values), np.int64, len(values))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _comm_args(name: str, args: _Args) -> CommArgs:
    """Give what an event says of its collective."""
    if args.collective:
        numbers = (args.in_elements, args.out_elements, args.group_size, args.seq)
        inside, outside, members, seq = (number if _is_count(number) else None for number in numbers)
        dtype = str(args.dtype or "")
        size = _possible(max(inside or 0, outside or 0) * _ELEMENT_BYTES.get(dtype.lower(), 0))
        group = str(args.group if args.group is not None else "")
        return CommArgs(str(args.collective), size, dtype, group, members or 0, -1 if seq is None else seq)
    size, dtype = _tensor_bytes(bytes(args.dims), bytes(args.types))
    return CommArgs(name.removeprefix(_GLOO), size, dtype)


def _possible(size: int) -> int:
    """Take no size for more than a petabyte: what adds sizes up must stay within 64 bits."""
    return size if 0 <= size < 1 << 50 else 0


def _tensor_bytes(dims: bytes, types: bytes) -> tuple[int, str]:
    """Give the bytes of an event's input tensors, from ``Input Dims`` and ``Input type``, and their first dtype."""
    try:
        shapes, dtypes = msgspec.json.decode(dims), msgspec.json.decode(types)
        total, first = 0, ""
        for shape, dtype in zip(shapes, dtypes, strict=False):
            size = _ELEMENT_BYTES.get(str(dtype).removeprefix("c10::").lower(), 0)
            for tensor in shape if shape and isinstance(shape[0], list) else [shape]:
                total += size * int(np.prod(tensor, dtype=np.int64)) if size else 0
            first = first or (str(dtype) if size else "")
        return _possible(total), first
    except (*DAMAGE, TypeError):
        return 0, ""
