"""The fields of an event that are decoded."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache
from typing import Any, Union

import msgspec

from dptrace.readers.trace import Category

__all__ = [
    "DAMAGE",
    "NO_ARGS",
    "SPAN",
    "UNKNOWN",
    "Args",
    "CompleteEvent",
    "DetailArgs",
    "InputArgs",
    "Instant",
    "MemoryArgs",
    "as_count",
    "code_of",
    "complete_events",
    "detailed_events",
    "events_with_instants",
    "operator_events",
]

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
_UNUSED = frozenset(
    # Further categories of Kineto's (ActivityType.cpp) that no figure needs.
    (
        *("gpu_user_annotation", "overhead", "cuda_sync", "cuda_event", "cuda_profiler_range", "xpu_scope_profiler"),
        *("external_correlation", "cpu_instant_event", "collective_comm"),
    )
)
SPAN = 253
"""Code of Kineto's event over the whole recording, which it writes after all others."""
_UNUSED_CODE = 254
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
    args: BasicArgs | None = NO_ARGS


class _CompleteWithArgs(CompleteEvent, frozen=True, gc=False, tag_field="ph", tag="X"):
    args: Args | None = NO_ARGS


class _Exact(CompleteEvent, frozen=True, gc=False, tag_field="ph", tag="X"):
    ts: int | Decimal | None = None  # type: ignore[assignment]
    dur: int | Decimal | None = None  # type: ignore[assignment]


class _ExactWithArgs(_Exact, frozen=True, gc=False, tag_field="ph", tag="X"):
    args: Args | None = NO_ARGS


class _CompleteWithDetails(CompleteEvent, frozen=True, gc=False, tag_field="ph", tag="X"):
    args: DetailArgs | None = None


class _ExactWithDetails(_Exact, frozen=True, gc=False, tag_field="ph", tag="X"):
    args: DetailArgs | None = None


class _CompleteWithInputs(CompleteEvent, frozen=True, gc=False, tag_field="ph", tag="X"):
    args: InputArgs | None = None


class _ExactWithInputs(_Exact, frozen=True, gc=False, tag_field="ph", tag="X"):
    args: InputArgs | None = None


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


class _ExactInstant(Instant, frozen=True, gc=False, tag_field="ph", tag="i"):
    ts: int | Decimal | None = None  # type: ignore[assignment]


class _Phase(msgspec.Struct, frozen=True, gc=False):
    ph: str = ""


SKIPPED_PHASES = "sftiIMCben"
"""Flows, instants, metadata, counters and async events, which no figure needs."""
_SKIPPED_EVENTS = [
    msgspec.defstruct(f"Other{i}", [], tag_field="ph", tag=phase, frozen=True, gc=False)
    for i, phase in enumerate(SKIPPED_PHASES)
]


class _Events:
    """Decoder of the complete events of a list, which counts the others and those of an unknown phase.

    Flows, instants, counters and metadata are up to half of a file. Tagged by their ``ph``, they become empty objects,
    so that the decoder skips their fields.
    """

    def __init__(self, complete: type[CompleteEvent]) -> None:
        self.complete = complete
        self.any: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[Union[(complete, *_SKIPPED_EVENTS)]])  # type: ignore[valid-type]
        self.only: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[complete])  # type: ignore[valid-type]
        self.phases = {"X"}

    def decode(self, text: bytes) -> tuple[int, int, list[Any]]:
        try:
            events = self.any.decode(text)
        except msgspec.ValidationError:
            return self._decode_others(text)
        return len(events), 0, self._wanted(events)

    def _wanted(self, events: list[Any]) -> list[Any]:
        complete = self.complete
        return [event for event in events if type(event) is complete]

    def _decode_others(self, text: bytes) -> tuple[int, int, list[Any]]:
        """Do the same where an event has no ``ph`` or an unknown one."""
        phases, events = [event.ph for event in _PHASES.decode(text)], _TEXTS.decode(text)
        wanted = [event for event, phase in zip(events, phases, strict=True) if phase in self.phases]
        unknown = sum(phase not in _KNOWN_PHASES for phase in phases)
        return len(events), unknown, self.only.decode(b"[" + b",".join(wanted) + b"]")


class _EventsWithInstants(_Events):
    """The same, which also returns the instants."""

    def __init__(self, complete: type[CompleteEvent], instant: type[Instant]) -> None:
        super().__init__(complete)
        others = [other for other in _SKIPPED_EVENTS if other.__struct_config__.tag != "i"]
        self.any = msgspec.json.Decoder(list[Union[(complete, instant, *others)]])  # type: ignore[valid-type]
        self.only = msgspec.json.Decoder(list[complete | instant])  # type: ignore[valid-type]
        self.phases = {"X", "i"}

    def _wanted(self, events: list[Any]) -> list[Any]:
        return [event for event in events if isinstance(event, (CompleteEvent, Instant))]


_KNOWN_PHASES = frozenset("X" + SKIPPED_PHASES)
_PHASES: msgspec.json.Decoder[list[_Phase]] = msgspec.json.Decoder(list[_Phase])
_TEXTS: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])


@cache
def _events(exact: bool, with_comm_args: bool) -> _Events:
    if exact:
        return _Events(_ExactWithArgs if with_comm_args else _Exact)
    return _Events(_CompleteWithArgs if with_comm_args else CompleteEvent)


def complete_events(
    text: bytes, exact: bool = False, with_comm_args: bool = False
) -> tuple[int, int, list[CompleteEvent]]:
    """Decode a JSON list of events; return their number, that of an unknown phase, and the complete ones among them.

    Args:
        exact: whether times with decimals become Decimal instead of float.
        with_comm_args: whether ``args`` are decoded as Args, which a file without collectives does not need.

    Raises:
        DAMAGE: the text is not a list of events.
    """
    return _events(exact, with_comm_args).decode(text)


def detailed_events(text: bytes, exact: bool = False) -> tuple[int, int, list[CompleteEvent]]:
    """Decode a JSON list of events as :func:`complete_events` does, with :class:`DetailArgs`."""
    return _detailed(exact).decode(text)


@cache
def _detailed(exact: bool) -> _Events:
    return _Events(_ExactWithDetails if exact else _CompleteWithDetails)


def operator_events(text: bytes, exact: bool = False) -> tuple[int, int, list[CompleteEvent]]:
    """Decode a JSON list of events as :func:`complete_events` does, with :class:`InputArgs`."""
    return _with_inputs(exact).decode(text)


@cache
def _with_inputs(exact: bool) -> _Events:
    return _Events(_ExactWithInputs if exact else _CompleteWithInputs)


def events_with_instants(
    text: bytes, exact: bool = False, with_comm_args: bool = False
) -> tuple[int, int, list[CompleteEvent | Instant]]:
    """Decode a JSON list of events as :func:`complete_events` does; return the instants, too."""
    return _with_instants(exact, with_comm_args).decode(text)


@cache
def _with_instants(exact: bool, with_comm_args: bool) -> _EventsWithInstants:
    instant = _ExactInstant if exact else Instant
    return _EventsWithInstants(_events(exact, with_comm_args).complete, instant)


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


_DIGITS = re.compile(r"\d{1,19}", re.ASCII)
_EXACT = 2**53
"""Below it, a double holds every whole number."""
