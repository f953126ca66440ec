"""Conversion of a file's times, in µs as JSON spells them, to integer ns without rounding error."""

from __future__ import annotations

import re
from array import array
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import Int64

__all__ = ["NeedsDecimal", "fast_nanoseconds", "nanoseconds"]

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
