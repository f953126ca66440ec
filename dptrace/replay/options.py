"""The options of a what-if, as numbers and as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict, TypeVar

from dptrace.core.numbers import Number
from dptrace.core.patterns import compiled
from dptrace.errors import UsageError
from dptrace.model.training.communication import Link, parse_link
from dptrace.replay.simulation import Bandwidth, Change, Compute, Kernel, NoHostDelay, PerfectOverlap, Straggler
from dptrace.replay.transforms.launches import Accumulate, CudaGraphs, Fuse, NoRecompute
from dptrace.replay.transforms.links import (
    Communication,
    Latency,
    LinkBandwidth,
    LinkChange,
    OtherLink,
    WorldSize,
    parse_compress,
)
from dptrace.replay.transforms.schedule import MIB, Reschedule
from dptrace.replay.transforms.stragglers import NoStraggler

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "ExtraOptions",
    "changes_of",
    "communication_of",
    "launches_of",
    "parse_bandwidth",
    "parse_factor",
    "parse_kernel",
    "parse_latency",
    "parse_rate",
    "parse_straggler",
]


# The options of a what-if about launches and communication, as numbers and as text.


NUMBER = r"((?:\d{1,12}(?:\.\d{0,9})?|\.\d{1,9})(?:[eE][+-]?\d{1,2})?)"
"""A number without a sign: 2, 0.5, .5 or 1e6."""
_TIMES = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6}
_RATES = {"MB": 1e6, "GB": 1e9, "TB": 1e12}
_RANKS, _MICRO_STEPS = Number(2, 1 << 20, whole=True), Number(1, 1 << 16, whole=True)
_MIB, _RATE = Number(above=0, most=1e6), Number(1e3, 1e15)
# A replay counts int64 nanoseconds: what takes longer must leave them room.
SPEEDUP, SHARE = Number(1e-6), Number(above=0, most=1e6)
"""Factors by which something is faster, or takes longer."""
LATE_NS = Number(0, 86_400 * 10**9, whole=True)
_LATENCY_NS, _SHARE_OF_LATENCY = Number(0, 1e9), Number(0, 1e6)

OptionValue = TypeVar("OptionValue", bound=float)


class ExtraOptions(TypedDict, total=False):
    """What else may be different; see :func:`dptrace.whatif`."""

    latency: str | None
    link: str | Link | None
    compress: str | None
    world_size: int | None
    bucket_cap_mb: float | None
    schedule: str | None
    accumulate: int | None
    fuse: str | None
    cuda_graphs: bool
    no_recompute: bool


def launches_of(options: ExtraOptions) -> list[Change]:
    """Return the changes of what is launched, in the order in which they apply."""
    changes: list[Change] = [NoRecompute()] if options.get("no_recompute") else []
    fuse = options.get("fuse")
    if fuse is not None:
        compiled(fuse, "--fuse")
        changes.append(Fuse(fuse))
    return [*changes, *([CudaGraphs()] if options.get("cuda_graphs") else [])]


def communication_of(options: ExtraOptions, rate: str | None) -> list[Change]:
    """Return the changes of communication: links first, then messages, then when they are sent.

    Args:
        rate: the bandwidth of links as text.

    Raises:
        UsageError: a value is out of range, or two options contradict each other.
    """
    link, latency = options.get("link"), options.get("latency")
    for option, text in (("--latency", latency), ("--compress", options.get("compress"))):
        if text is not None and not isinstance(text, str):
            raise UsageError(f"{option} {text!r}: give text, as on the command line.")
    if link is not None and (latency is not None or rate is not None):
        raise UsageError("--link sets latency and bandwidth: give it alone, or as LATENCY:BANDWIDTH (5us:12.5GB/s).")
    parts: list[LinkChange] = []
    ranks = _checked(options.get("world_size"), "--world-size", _RANKS)
    parts += [WorldSize(ranks)] if ranks else []
    parts += [_link(link)] if link is not None else []
    parts += [LinkBandwidth(parse_rate(rate))] if rate is not None else []
    parts += [parse_latency(latency)] if latency is not None else []
    compress = options.get("compress")
    parts += [parse_compress(compress)] if compress is not None else []
    changes: list[Change] = [Communication(tuple(parts))] if parts else []
    changes += _schedule(options.get("schedule"), options.get("bucket_cap_mb"))
    micro = _checked(options.get("accumulate"), "--accumulate", _MICRO_STEPS)
    return [*changes, *([Accumulate(micro)] if micro else [])]


def _link(link: str | Link) -> OtherLink:
    return OtherLink(link, measured=True) if isinstance(link, Link) else OtherLink(parse_link(link))


def _checked(value: OptionValue | None, option: str, number: Number) -> OptionValue | None:
    if value is not None:
        number.check(value, option)
    return value


def _schedule(schedule: str | None, cap_mb: float | None) -> list[Change]:
    cap_mb = _checked(cap_mb, "--bucket-cap-mb", _MIB)
    if cap_mb is None:
        return [] if schedule is None else [Reschedule(schedule)]
    if schedule in ("naive", "interleaved"):
        raise UsageError(
            f"--bucket-cap-mb is for DDP's buckets, and --schedule {schedule} reduces each gradient alone."
        )
    return [Reschedule(schedule or "ddp", max(1, round(cap_mb * MIB)))]


def parse_latency(text: str) -> Latency:
    """Parse ``0.5x`` of the recorded latency, or ``5us`` of one link.

    Raises:
        UsageError: the text is neither.
    """
    if match := re.fullmatch(rf"\s*{NUMBER}\s*[x×]\s*", text):
        factor = float(match[1])
        _SHARE_OF_LATENCY.check(factor, f"--latency {text.strip()}: factor")
        return Latency(factor=factor)
    if match := re.fullmatch(rf"\s*{NUMBER}\s*({'|'.join(_TIMES)})\s*", text):
        link_ns = float(match[1]) * _TIMES[match[2]]
        _LATENCY_NS.check(link_ns, f"--latency {text.strip()}: nanoseconds")
        return Latency(link_ns=link_ns)
    raise UsageError(f"--latency {text}: expected a factor or a time, for example 0.5x or 5us.")


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


Key = TypeVar("Key")
Value = TypeVar("Value")
_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def changes_of(
    *,
    compute: float | None = None,
    bandwidth: float | str | None = None,
    kernels: Mapping[str, float] | None = None,
    straggler: Mapping[int, int] | None = None,
    no_straggler: bool = False,
    no_host_delay: bool = False,
    perfect_overlap: bool = False,
    **others: Unpack[ExtraOptions],
) -> tuple[Change, ...]:
    """Return the changes in the order in which they apply; see :meth:`dptrace.Run.whatif` for the options.

    Raises:
        TypeError: there is no such option.
        UsageError: a value is out of range, or a pattern is no regular expression.
    """
    if unknown := sorted(set(others) - set(ExtraOptions.__annotations__)):
        raise TypeError(f"whatif() got an unexpected keyword argument {unknown[0]!r}")
    if isinstance(bandwidth, str):
        bandwidth = parse_bandwidth(bandwidth)
    rate = bandwidth if isinstance(bandwidth, str) else None
    speedup = None if isinstance(bandwidth, str) else bandwidth
    for option, factor in (("--compute", compute), ("--bandwidth", speedup)):
        if factor is not None:
            SPEEDUP.check(factor, option)
    shares, late = _mapping(kernels, "--kernel"), _mapping(straggler, "--straggler")
    for pattern, share in shares.items():
        compiled(pattern, "--kernel")
        SHARE.check(share, f"--kernel {pattern}")
    for rank, late_ns in late.items():
        LATE_NS.check(late_ns, f"--straggler {rank}: ns")
    # What levels or removes comes first, so that what is added after it stays.
    changes: list[Change] = [*([NoStraggler()] if no_straggler else []), *([NoHostDelay()] if no_host_delay else [])]
    changes += launches_of(others)
    changes += [Compute(compute)] if compute is not None else []
    changes += [Kernel(pattern, share) for pattern, share in shares.items()]
    changes += [Bandwidth(speedup)] if speedup is not None else []
    changes += communication_of(others, rate)
    changes += [PerfectOverlap()] if perfect_overlap else []
    changes += [Straggler(rank, late_ns) for rank, late_ns in late.items()]
    return tuple(changes)


def _mapping(given: Mapping[Key, Value] | None, option: str) -> Mapping[Key, Value]:
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"{option} {given!r}: give a dictionary, such as {{'gemm': 0.5}} or {{0: 20_000_000}}.")
    return given or {}


def parse_bandwidth(text: str) -> float | str:
    """Parse a factor such as ``2x``; a rate such as ``25GBps`` stays text.

    Raises:
        UsageError: the text is no number above 0.
    """
    return text if text.strip().lower().endswith(("bps", "b/s")) else parse_factor(text, "--bandwidth")


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
    match = re.fullmatch(rf"\s*(\d{{1,6}})={NUMBER}\s*({'|'.join(_UNITS)})\s*", text)
    if not match:
        raise UsageError(f"--straggler {text}: expected RANK=TIME with a unit, for example 0=20ms.")
    return int(match[1]), round(float(match[2]) * _UNITS[match[3]])
