"""The options of a what-if, as numbers and as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dptrace.errors import UsageError
from dptrace.replay.simulation.changes import Bandwidth, Change, Compute, Kernel, NoHostDelay, PerfectOverlap, Straggler
from dptrace.replay.transforms.options import NUMBER, ExtraOptions, communication_of, launches_of
from dptrace.replay.transforms.stragglers import NoStraggler

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["changes_of", "parse_bandwidth", "parse_factor", "parse_kernel", "parse_straggler"]

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
        UsageError: a factor is not above 0, or a time is negative.
    """
    if unknown := sorted(set(others) - set(ExtraOptions.__annotations__)):
        raise TypeError(f"whatif() got an unexpected keyword argument {unknown[0]!r}")
    if isinstance(bandwidth, str):
        bandwidth = parse_bandwidth(bandwidth)
    factors = {
        "compute": compute,
        "bandwidth": None if isinstance(bandwidth, str) else bandwidth,
        **{f"kernel {name}": f for name, f in (kernels or {}).items()},
    }
    for name, factor in factors.items():
        if factor is not None and not 0 < factor < float("inf"):
            raise UsageError(f"{name} {factor:g}×: a factor must be above 0.")
    if late := [ns for ns in (straggler or {}).values() if ns < 0]:
        raise UsageError(f"A straggler can't be late by {late[0]} ns: give a time of 0 or more.")
    # What levels or removes comes first, so that what is added after it stays.
    changes: list[Change] = [*([NoStraggler()] if no_straggler else []), *([NoHostDelay()] if no_host_delay else [])]
    changes += launches_of(others)
    changes += [Compute(compute)] if compute is not None else []
    changes += [Kernel(pattern, factor) for pattern, factor in (kernels or {}).items()]
    changes += [Bandwidth(bandwidth)] if isinstance(bandwidth, (int, float)) else []
    changes += communication_of(others, bandwidth if isinstance(bandwidth, str) else None)
    changes += [PerfectOverlap()] if perfect_overlap else []
    changes += [Straggler(rank, late_ns) for rank, late_ns in (straggler or {}).items()]
    return tuple(changes)


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
