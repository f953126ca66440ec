"""The options of a what-if: each is declared once, for ``dptrace whatif`` and as a keyword in Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypedDict, get_type_hints

import msgspec

from dptrace.core.numbers import Number
from dptrace.core.patterns import compiled
from dptrace.errors import UsageError
from dptrace.model.training.communication import Link

NUMBER = r"((?:\d{1,12}(?:\.\d{0,9})?|\.\d{1,9})(?:[eE][+-]?\d{1,2})?)"
"""A number without a sign: 2, 0.5, .5 or 1e6."""
TIMES = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_RATES = {"MB": 1e6, "GB": 1e9, "TB": 1e12}
SCHEDULES = ("naive", "interleaved", "ddp", "overlap-optimizer")
# A replay counts int64 nanoseconds: what takes longer must leave them room.
SPEEDUP, _SHARE = Number(1e-6), Number(above=0, most=1e6)
_LATE_NS, _RATE = Number(0, 86_400 * 10**9, whole=True), Number(1e3, 1e15)
_RANKS, _MICRO_STEPS, _MIB = Number(2, 1 << 20, whole=True), Number(1, 1 << 16, whole=True), Number(above=0, most=1e6)


def parse_bandwidth(text: str) -> float | str:
    """Parse a factor such as ``2x``; a rate such as ``25GBps`` stays text.

    Raises:
        UsageError: the text is no number above 0.
    """
    return text if text.strip().lower().endswith(("bps", "b/s")) else parse_factor(text, "--bandwidth")


def parse_rate(text: str) -> float:
    """Parse ``25GBps`` or ``25 GB/s``, in bytes per second.

    Raises:
        UsageError: the text is not of this form, or 0.
    """
    match = re.fullmatch(rf"\s*{NUMBER}\s*(MB|GB|TB)(?:ps|/s)\s*", text, re.IGNORECASE)
    if not match:
        raise UsageError(f"--bandwidth {text}: expected a factor or bytes per second, for example 2x or 25GBps.")
    rate = float(match[1]) * _RATES[match[2].upper()]
    _RATE.check(rate, f"--bandwidth {text.strip()}: bytes per second")
    return rate


def parse_factor(text: str, option: str) -> float:
    """Parse ``2x``, ``1.5`` or ``1e6x``.

    Raises:
        UsageError: the text is not a number above 0.
    """
    return _factor(text, f"{option} {text}")


def _factor(text: str, typed: str) -> float:
    match = re.fullmatch(rf"\s*{NUMBER}\s*[x×]?\s*", text)
    if not match or not float(match[1]):
        raise UsageError(f"{typed}: expected a factor above 0, for example 2x or 0.5x.")
    return float(match[1])


def parse_kernel(text: str) -> tuple[str, float]:
    """Parse ``REGEX=0.5x``.

    Raises:
        UsageError: the text is not of this form.
    """
    pattern, equals, factor = text.rpartition("=")
    if not equals or not pattern:
        raise UsageError(f"--kernel {text}: expected REGEX=FACTOR, for example gemm=0.5x.")
    return pattern, _factor(factor, f"--kernel {text}")


def parse_straggler(text: str) -> tuple[int, int]:
    """Parse ``2=20ms``: a rank, and how late it is, in ns.

    Raises:
        UsageError: the text is not of this form.
    """
    match = re.fullmatch(rf"\s*(\d{{1,6}})={NUMBER}\s*({'|'.join(TIMES)})\s*", text)
    if not match:
        raise UsageError(f"--straggler {text}: expected RANK=TIME with a unit, for example 0=20ms.")
    return int(match[1]), round(float(match[2]) * TIMES[match[3]])


class Option(msgspec.Struct, frozen=True):
    """How something different is given."""

    help: str
    """What --help says of it."""
    metavar: str = ""
    """What it takes on the command line; empty for a switch."""
    read: Callable[[str], Any] = str
    """Turns the text of the command line into the value in Python, or into a pair of a repeatable option."""
    takes: Number | type[str] | None = None
    """What its value in Python, or each value of a repeatable option, must be; None for what is checked elsewhere."""
    flag: str = ""
    """Its name on the command line, where that is not the keyword's."""
    choices: tuple[str, ...] = ()
    repeatable: bool = False
    """Whether it is given several times: the keyword takes a dictionary."""
    is_pattern: bool = False
    """Whether it is, or a repeatable one has for keys, regular expressions."""
    is_swept: bool = False
    """Whether the command line takes several values, with commas, whose answers are compared."""


class Options(TypedDict, total=False):
    """The keywords of :func:`dptrace.whatif`, in the order of --help."""

    no_straggler: Annotated[bool, Option("Between collectives, no rank is slower than the median one.")]
    straggler: Annotated[
        Mapping[int, int] | None,
        Option(
            "The host of a rank is late in each step: 2=20ms; repeatable.",
            "RANK=TIME",
            parse_straggler,
            _LATE_NS,
            repeatable=True,
        ),
    ]
    compute: Annotated[
        float | None,
        Option(
            "Compute is faster: 2x takes half the time.", "FACTOR", partial(parse_factor, option="--compute"), SPEEDUP
        ),
    ]
    bandwidth: Annotated[
        float | str | None,
        Option("Links are faster: 2x, or move 25GBps in one direction.", "FACTOR|RATE", parse_bandwidth),
    ]
    latency: Annotated[str | None, Option("Latency of a link: 0.5x of what it is, or 5us.", "FACTOR|TIME", takes=str)]
    link: Annotated[
        str | Link | None,
        Option("Other links: nvlink4, ib-ndr …, 5us:12.5GB/s, or a file of dptrace links.", "NAME|FILE"),
    ]
    world_size: Annotated[
        int | None,
        Option(
            "Other numbers of data-parallel ranks; for a recording of one rank, add --link.",
            "N[,N…]",
            int,
            _RANKS,
            is_swept=True,
        ),
    ]
    bucket_cap_mb: Annotated[
        float | None,
        Option("Size of DDP's buckets in MiB; several values are compared.", "MB[,MB…]", float, _MIB, is_swept=True),
    ]
    schedule: Annotated[
        str | None,
        Option("When gradients are reduced: naive, interleaved, ddp or overlap-optimizer.", "NAME", choices=SCHEDULES),
    ]
    compress: Annotated[
        str | None,
        Option("Messages, or those of a kind, are in fp16, bf16, fp8, int8 or int4.", "TYPE|KIND=TYPE", takes=str),
    ]
    accumulate: Annotated[
        int | None,
        Option("K micro-steps for one all-reduce and one step of the optimizer.", "K", int, _MICRO_STEPS),
    ]
    kernels: Annotated[
        Mapping[str, float] | None,
        Option(
            "Matching kernels take this share of their time: gemm=0.5x; repeatable.",
            "REGEX=FACTOR",
            parse_kernel,
            _SHARE,
            "--kernel",
            repeatable=True,
            is_pattern=True,
        ),
    ]
    fuse: Annotated[
        str | None,
        Option("Neighboring kernels with matching names are one, as long as the longest.", "REGEX", is_pattern=True),
    ]
    cuda_graphs: Annotated[bool, Option("The kernels of a step are launched at once.")]
    no_recompute: Annotated[bool, Option("Backward recomputes nothing of forward.")]
    no_host_delay: Annotated[bool, Option("The host takes no time: calls and Python between them.")]
    perfect_overlap: Annotated[bool, Option("Nothing waits for a collective.")]
    all_ranks: Annotated[bool, Option("Replay every rank: of more than 64, some stand for those that are like them.")]


def _declared() -> dict[str, Option]:
    hints, found = get_type_hints(Options, include_extras=True), {}
    for name, hint in hints.items():
        option: Option = hint.__metadata__[0]
        found[name] = msgspec.structs.replace(option, flag=option.flag or f"--{name.replace('_', '-')}")
    return found


OPTIONS = _declared()
"""The options by the names of their keywords."""


def check(options: Mapping[str, Any]) -> None:
    """Refuse values that no run can have.

    Raises:
        TypeError: there is no such option.
        UsageError: a value is out of range, or a pattern is no regular expression.
    """
    for name, value in options.items():
        if name not in OPTIONS:
            raise TypeError(f"whatif() got an unexpected keyword argument {name!r}")
        option = OPTIONS[name]
        if value is None:
            continue
        if option.repeatable and not isinstance(value, Mapping):
            example = "{'gemm': 0.5} or {0: 20_000_000}"
            raise UsageError(f"{option.flag} {value!r}: give a dictionary, such as {example}.")
        given = value.items() if option.repeatable else [(value, value)]
        for key, one in given:
            if option.is_pattern:
                compiled(key, option.flag)
            if isinstance(option.takes, Number):
                option.takes.check(one, f"{option.flag} {key}" if option.repeatable else option.flag)
            elif option.takes is str and not isinstance(one, str):
                raise UsageError(f"{option.flag} {one!r}: give text, as on the command line.")
