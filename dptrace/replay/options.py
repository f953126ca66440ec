"""The options of a what-if, as numbers and as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from dptrace.core.patterns import compiled
from dptrace.errors import UsageError
from dptrace.replay.simulation.changes import Bandwidth, Change, Compute, Kernel, NoHostDelay, PerfectOverlap, Straggler
from dptrace.replay.transforms.options import (
    LATE_NS,
    NUMBER,
    SHARE,
    SPEEDUP,
    ExtraOptions,
    communication_of,
    launches_of,
)
from dptrace.replay.transforms.stragglers import NoStraggler

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["changes_of", "parse_bandwidth", "parse_factor", "parse_kernel", "parse_straggler"]

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
