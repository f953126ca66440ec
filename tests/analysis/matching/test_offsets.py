"""Clock offsets from the ends of synchronizing collectives."""

from __future__ import annotations

import numpy as np
import pytest

from dptrace.analysis.matching.offsets import SharedCollectives, estimate_offset, estimate_offsets
from dptrace.core.intervals import Int64


def shared(
    count: int, ahead: int = 0, ppm: float = 0.0, jitter: int = 3_000, late: int = 0, seed: int = 1
) -> SharedCollectives:
    """Make all-reduces of 50 to 100 µs, one per ms, whose ends agree within the jitter; the other arrived *late*."""
    draw = np.random.default_rng(seed)
    end = 10**18 + np.arange(count, dtype=np.int64) * 1_000_000
    length = draw.integers(50_000, 100_000, count)
    other = end + draw.integers(-jitter, jitter + 1, count)
    begin = other - length + late

    def redact(times: Int64) -> Int64:
        moved: Int64 = times + ahead + np.rint((times - 10**18) * (ppm * 1e-6)).astype(np.int64)
        return moved

    return SharedCollectives(end - length, end, redact(begin), redact(other))


@pytest.mark.parametrize("ahead", [0, 500_000, -5_000_000, 500_000_000])
@pytest.mark.parametrize("late", [0, 40_000])
def test_an_offset_is_found_within_its_uncertainty(ahead: int, late: int) -> None:
    """For any offset, and however late one rank starts."""
    offset = estimate_offset(shared(200, ahead, late=late))

    assert abs(offset.ahead_ns - ahead) <= offset.uncertainty_ns < 10_000
    assert 0 == offset.drift


def test_a_drift_is_found_in_a_long_capture_only() -> None:
    """50 ppm are 150 µs in three seconds, but less than the scatter of the ends in ten milliseconds."""
    long, short = estimate_offset(shared(3_000, 7_000_000, 50)), estimate_offset(shared(10, 7_000_000, 50))

    assert 50 == pytest.approx(long.drift * 1e6, abs=1)
    assert 0 == short.drift
    times = np.array([10**18, 10**18 + 3_000_000_000]) + 7_000_000
    assert np.abs(long.ahead_at(times) - 7_000_000 - np.array([0, 150_000])).max() <= long.uncertainty_ns


def test_a_third_of_outliers_moves_nothing() -> None:
    """The median ignores a few outliers."""
    good = shared(300)
    end = good.other_end_ns.copy()
    end[::3] += 40_000_000

    assert (
        abs(estimate_offset(SharedCollectives(good.start_ns, good.end_ns, good.other_start_ns, end)).ahead_ns) < 5_000
    )


def test_one_collective_is_bounded_by_causality() -> None:
    """Neither can have left before the other arrived, and nothing else is known."""
    one = SharedCollectives(*(np.array([value], np.int64) for value in (0, 30_000, 1_000_000, 1_020_000)))
    offset = estimate_offset(one)

    assert 990_000 == offset.ahead_ns
    assert 30_000 == offset.uncertainty_ns


def test_differences_smaller_than_a_microsecond_are_not_reported() -> None:
    """Traces may round to microseconds."""
    assert 1_000 == estimate_offset(shared(50, jitter=0)).uncertainty_ns


def test_clocks_are_chained_through_groups() -> None:
    """Ranks 0 and 1 share one group, 1 and 2 another, 3 and 4 a third: uncertainties add up along a chain."""
    rows: list[tuple[int, int, int, int]] = []
    for number, (one, two, ahead) in enumerate(((0, 1, 5_000_000), (1, 2, -2_000_000), (3, 4, 1_000))):
        pair = shared(50, ahead, seed=number)
        base = 5_000_000 if one == 1 else 0
        for i in range(50):
            rows.append((number * 50 + i, one, int(pair.start_ns[i]) + base, int(pair.end_ns[i]) + base))
            rows.append((number * 50 + i, two, int(pair.other_start_ns[i]) + base, int(pair.other_end_ns[i]) + base))
    instance, device, start, end = (np.array(column, np.int64) for column in zip(*rows, strict=True))

    offsets, reference = estimate_offsets(instance, device.astype(np.int32), start, end, 6)

    assert [0, 0, 0, 3, 3, 5] == reference
    assert 5_000_000 == pytest.approx(offsets[1].ahead_ns, abs=offsets[1].uncertainty_ns)
    assert 3_000_000 == pytest.approx(offsets[2].ahead_ns, abs=offsets[2].uncertainty_ns)
    assert offsets[2].uncertainty_ns > offsets[1].uncertainty_ns > 0
    assert 25 == offsets[2].count
    assert 0 == offsets[5].uncertainty_ns == offsets[5].count
