"""Which ranks and steps of a run to keep, as the command line writes it or as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from numbers import Integral

from dptrace.core.numbers import Number
from dptrace.errors import UsageError

_NUMBER = Number(0, whole=True)
_RANKS = "expected numbers and ranges, for example 0,1 or 0-3"
_STEPS = "expected the first and the last number, for example 4:6, or one, 4"


def ranks_of(ranks: str | int | Iterable[int]) -> frozenset[int]:
    """Return the ranks of ``"0,2"``, ``"0-3,8"``, one number or several.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(ranks, str):
        parts = [_range(part, r"(\d{1,6})(?:-(\d{1,6}))?") for part in ranks.split(",")]
        if None in parts:
            raise UsageError(f"--ranks {ranks}: {_RANKS}.")
        return frozenset(number for part in parts for number in part or ())
    numbers = [ranks] if isinstance(ranks, Integral) else ranks
    if not isinstance(numbers, Iterable):
        raise UsageError(f"--ranks {ranks!r}: {_RANKS}.")
    found = list(numbers)
    for number in found:
        _NUMBER.check(number, "--ranks")
    return frozenset(map(int, found))


def steps_of(steps: str | int | Iterable[int], option: str = "--steps") -> tuple[int, int]:
    """Return the first and the last step of ``"4"``, ``"4:6"``, one number or two; both are included.

    Args:
        steps: numbers as in the names of steps in the trace, such as ``ProfilerStep#4``.
        option: what the user calls it.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(steps, str):
        numbers = _range(steps, r"(\d{1,12})(?::(\d{1,12}))?")
        if numbers is None:
            raise UsageError(f"{option} {steps}: {_STEPS}.")
        return numbers[0], numbers[-1]
    found = [steps, steps] if isinstance(steps, Integral) else list(steps) if isinstance(steps, list | tuple) else []
    for number in found:
        _NUMBER.check(number, option)
    if len(found) != 2 or found[1] < found[0]:
        raise UsageError(f"{option} {steps!r}: {_STEPS}.")
    return int(found[0]), int(found[1])


def _range(text: str, form: str) -> range | None:
    """Return the numbers that a text stands for, the last of them included; None where it has another form."""
    match = re.fullmatch(form, text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    return range(first, last + 1) if first <= last else None
