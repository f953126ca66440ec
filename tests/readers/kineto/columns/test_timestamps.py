"""Conversion of times in JSON."""

from __future__ import annotations

from decimal import Decimal

import pytest

from dptrace.readers.kineto.columns.timestamps import NeedsDecimal, fast_nanoseconds, nanoseconds


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([5, 1712195495519689], [5_000, 1712195495519689_000]),
        ([0.157, 4458676522690.655, -1.5], [157, 4458676522690_655, -1_500]),
        ([3, 0.25], [3_000, 250]),
        ([1712195495519689, 0.001], [1712195495519689_000, 1]),
        (["4.5", 1], [4_500, 1_000]),
    ],
)
def test_no_nanosecond_is_lost(values: list[object], expected: list[int]) -> None:
    """Integers, decimals, mixtures and numbers as text are converted exactly."""
    assert expected == nanoseconds(values, exact=False).tolist()


def test_decimals_with_more_digits_than_a_double_are_asked_for() -> None:
    """Epoch µs with decimals do not fit a double; as Decimal they are exact."""
    with pytest.raises(NeedsDecimal):
        nanoseconds([1712195495519689.047], exact=False)

    exact = [Decimal("1712195495519689.047"), 7]
    assert [1712195495519689_047, 7_000] == nanoseconds(exact, exact=True).tolist()


@pytest.mark.parametrize("value", [2**52, 2**70, -(2**60), "1e30"])
def test_times_beyond_any_clock_are_refused(value: object) -> None:
    """Values beyond 64 bits, alone or in a sum, are an error and never wrap."""
    with pytest.raises(OverflowError):
        nanoseconds([1, value], exact=False)


@pytest.mark.parametrize("value", [None, "5", Decimal(5), 1e300, 2**52])
def test_the_quick_way_leaves_the_odd_to_the_slow_one(value: object) -> None:
    """The fast path returns a result only where it is exact."""
    assert fast_nanoseconds([1, value], exact=isinstance(value, Decimal)) is None
