"""The fields of an event that are decoded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from typing import Any, TypeVar, Union

import msgspec

from dptrace.readers.trace import Category

Key = TypeVar("Key")

DAMAGE = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError)
"""Exceptions that decoding and reducing raise on text that is not an event."""

_CATEGORIES = {
    "python_function": Category.PYTHON,
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
SYNCHRONIZATION = "cuda_sync"
"""Category of recorded synchronizations, which most files do not hold."""
_UNUSED = frozenset(
    # Further categories of Kineto's (ActivityType.cpp) that no figure needs.
    (
        *(
            "gpu_user_annotation",
            "overhead",
            SYNCHRONIZATION,
            "cuda_event",
            "cuda_profiler_range",
            "xpu_scope_profiler",
        ),
        *("external_correlation", "cpu_instant_event", "collective_comm"),
    )
)
SPAN = 253
"""Code of Kineto's event over the whole recording, which it writes after all others."""
_UNUSED_CODE = 254
"""Of categories that are known and not read."""
UNKNOWN = 255
"""Code of any other category."""


class BasicArgs(msgspec.Struct, frozen=True, gc=False):
    """The ``args`` that are read from every event."""

    # Of any type, since an odd argument must not cost its event: a value of another type counts as absent.
    correlation: Any = -1
    device: Any = None
    stream: Any = None
    collective: Any = msgspec.field(default="", name="Collective name")


class Args(BasicArgs, frozen=True, gc=False):
    """The same with the metadata of a collective."""

    in_elements: Any = msgspec.field(default=0, name="In msg nelems")
    out_elements: Any = msgspec.field(default=0, name="Out msg nelems")
    group_size: Any = msgspec.field(default=0, name="Group size")
    dtype: Any = ""
    group: Any = msgspec.field(default="", name="Process Group Name")
    seq: Any = msgspec.field(default=-1, name="Seq")
    ranks: Any = msgspec.field(default="", name="Process Group Ranks")
    description: Any = msgspec.field(default="", name="Process Group Description")
    source: Any = msgspec.field(default=-1, name="Src Rank")
    target: Any = msgspec.field(default=-1, name="Dst Rank")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")
    concrete: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Concrete Inputs")


NO_ARGS = Args()


class DetailArgs(Args, frozen=True, gc=False):
    """The same with what one looks up about a single call or kernel."""

    grid: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""))
    block: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""))
    bytes: Any = None
    stack: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Call stack")


class InputArgs(Args, frozen=True, gc=False):
    """The same with what ties an operator to its FLOPs, and backward to forward."""

    strides: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Strides")
    sequence: Any = msgspec.field(default=-1, name="Sequence number")
    forward_thread: Any = msgspec.field(default=0, name="Fwd thread id")


class CompleteEvent(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="X"):
    """An event with a start and a duration."""

    cat: str | None = None
    name: str | int | float | None = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: int | float | str | None = None
    dur: int | float | str | None = None
    args: BasicArgs | None = None


class MemoryArgs(msgspec.Struct, frozen=True, gc=False):
    """The ``args`` of the events that ``profile_memory=True`` adds: ``[memory]`` and ``[OutOfMemory]``."""

    bytes: Any = msgspec.field(default=None, name="Bytes")
    address: Any = msgspec.field(default=0, name="Addr")
    allocated: Any = msgspec.field(default=None, name="Total Allocated")
    reserved: Any = msgspec.field(default=0, name="Total Reserved")
    device_type: Any = msgspec.field(default=0, name="Device Type")
    device: Any = msgspec.field(default=-1, name="Device Id")


class Instant(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="i"):
    """An event without a duration."""

    name: str | int | float | None = ""
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: int | float | str | None = None
    args: msgspec.Raw = msgspec.Raw(b"")


class ProcessLabel(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="M"):
    """An event of metadata: ``process_name`` and ``process_labels`` say what a process is."""

    name: Any = ""
    pid: Any = None
    args: Any = None

    @property
    def text(self) -> str:
        """What it says of a process; empty for metadata of other kinds."""
        key = {"process_name": "name", "process_labels": "labels"}.get(self.name if type(self.name) is str else "")
        value = self.args.get(key) if key and isinstance(self.args, dict) else None
        return value if type(value) is str and type(self.pid) in (int, str, float) else ""


class _Phase(msgspec.Struct, frozen=True, gc=False):
    ph: str = ""


SKIPPED_PHASES = "sftiICben"
"""Flows, instants, counters and async events, which no figure needs."""
_SKIPPED_EVENTS = [
    msgspec.defstruct(f"Other{i}", [], tag_field="ph", tag=phase, frozen=True, gc=False)
    for i, phase in enumerate(SKIPPED_PHASES)
]


class EventDecoder:
    """Decoder of the complete events of a list and of metadata, which counts the others and those of unknown phase.

    Flows, instants and counters are up to half of a file. Tagged by their ``ph``, they become empty objects,
    so that the decoder skips their fields.
    """

    def __init__(self, args: Any, exact: bool, instants: bool) -> None:
        times = [(key, int | Decimal | None, None) for key in ("ts", "dur")] if exact else []
        self.wanted = [_event_type(CompleteEvent, "X", [*times, ("args", args | None, None)])]
        if instants:
            self.wanted.append(_event_type(Instant, "i", times[:1]))
        self.phases = {kind.__struct_config__.tag for kind in self.wanted}
        others = [kind for kind in _SKIPPED_EVENTS if kind.__struct_config__.tag not in self.phases]
        self.any = _decoder_of([*self.wanted, ProcessLabel, *others])
        self.only, self.labels = _decoder_of(self.wanted), _decoder_of([ProcessLabel])

    def decode(self, text: bytes) -> tuple[int, int, list[Any], list[ProcessLabel]]:
        """Decode a JSON list of events.

        Returns:
            their number, that of an unknown phase, the wanted ones among them, and the metadata.

        Raises:
            DAMAGE: the text is not a list of events.
        """
        try:
            events = self.any.decode(text)
        except msgspec.ValidationError:
            return self._decode_others(text)
        first, *more = self.wanted
        if not more:  # the one comparison that most files need is the fastest
            chosen = [event for event in events if type(event) is first]
        else:
            chosen = [event for event in events if type(event) in self.wanted]
        if len(chosen) == len(events):
            return len(events), 0, chosen, []
        return len(events), 0, chosen, [event for event in events if type(event) is ProcessLabel]

    def _decode_others(self, text: bytes) -> tuple[int, int, list[Any], list[ProcessLabel]]:
        """Do the same where an event has no ``ph`` or an unknown one."""
        phases, events = [event.ph for event in _PHASES.decode(text)], _TEXTS.decode(text)
        wanted, labels = (
            b"[" + b",".join(event for event, phase in zip(events, phases, strict=True) if phase in chosen) + b"]"
            for chosen in (self.phases, ("M",))
        )
        unknown = sum(phase not in _KNOWN_PHASES for phase in phases)
        return len(events), unknown, self.only.decode(wanted), self.labels.decode(labels)


def _decoder_of(kinds: list[type[msgspec.Struct]]) -> msgspec.json.Decoder[list[Any]]:
    return msgspec.json.Decoder(list[Union[(*kinds,)]])  # type: ignore[valid-type]


def _event_type(base: type[msgspec.Struct], phase: str, fields: list[Any]) -> type[msgspec.Struct]:
    return msgspec.defstruct(base.__name__, fields, bases=(base,), tag_field="ph", tag=phase, frozen=True, gc=False)


@cache
def event_decoder(args: type[BasicArgs] = BasicArgs, exact: bool = False, instants: bool = False) -> EventDecoder:
    """Return a decoder of complete events.

    Args:
        args: the type that ``args`` are decoded as: the fewer its fields, the faster.
        exact: whether times with decimals become Decimal instead of float.
        instants: whether instants (:class:`Instant`) are wanted, too.
    """
    return EventDecoder(args, exact, instants)


_KNOWN_PHASES = frozenset("XM" + SKIPPED_PHASES)
_PHASES: msgspec.json.Decoder[list[_Phase]] = msgspec.json.Decoder(list[_Phase])
_TEXTS: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])


def code_of(category: str | None) -> int:
    """Return the code of a file's category: a :class:`Category`, SPAN, or a larger number for others."""
    if category == "Trace":
        return SPAN
    name = (category or "").lower()
    return _CATEGORIES.get(name, _UNUSED_CODE if name in _UNUSED else UNKNOWN)


def as_count(value: object) -> int | None:
    """Return a whole number from 0 to below 2**62, which may be spelled 5.0 or "5"; None for other values."""
    if type(value) is float:
        value = int(value) if value.is_integer() and value < _EXACT else None
    elif type(value) is str:
        value = int(value) if _DIGITS.fullmatch(value) else None
    return value if type(value) is int and 0 <= value < 1 << 62 else None


MAX_RANKS = 1 << 20
"""No job has as many ranks: a larger rank or size of a group is damage."""


def is_out_of_range(value: object, limit: int = 1 << 62) -> bool:
    """Return whether a value is a number, however spelled, but below -1, which stands for none, or from *limit* on."""
    if type(value) is str:
        value = int(value) if _INTEGER.fullmatch(value) else None
    return type(value) in (int, float) and not -1 <= value < limit  # type: ignore[operator]


_INTEGER = re.compile(r"-?\d{1,400}", re.ASCII)
_DIGITS = re.compile(r"\d{1,19}", re.ASCII)
_EXACT = 2**53
"""Below it, a double holds every whole number."""

# Which processes of a file may be ranks.

COORDINATE = r"([A-Za-z]{1,8})[-_ ]?(\d{1,6})"
TAG = re.compile(rf"\s*\[((?:{COORDINATE}\W?)+)\]")
"""What SGLang puts before a pid: ``[TP00]``, ``[TP00-PP01]``."""
_PID = re.compile(r".*\d")
"""A number with or without a label."""
_FEWEST_CALLS, _SHARE_OF_CALLS = 2, 0.05
"""Calls of a process that is a rank, and their share of those of the busiest: a damaged event has some other id."""


def busy_processes(counted: Callable[[Category], Mapping[Key, int]]) -> list[Key]:
    """Return the processes that may be ranks: those that launch work, or run operators where none is launched.

    Where there is neither, a label alone, such as ``[TP00] 0``, tells ranks apart: a kernel's process is its GPU.

    Args:
        counted: returns how many events of a category each process has.
    """
    kinds = (counted(category) for category in (Category.LAUNCH, Category.CPU_OP))
    calls = next((calls for calls in kinds if any(calls.values())), None)
    if calls is None:
        calls = {pid: count for pid, count in counted(Category.KERNEL).items() if TAG.match(str(pid))}
    fewest = max(_FEWEST_CALLS, _SHARE_OF_CALLS * max(calls.values(), default=0))
    return [pid for pid, count in calls.items() if count >= fewest and _PID.fullmatch(str(pid))]
