"""Pairing of calls into instances."""

from __future__ import annotations

import time
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dptrace.analysis.matching import pairing as module
from dptrace.analysis.matching.calls import calls_of
from dptrace.analysis.matching.match import match
from dptrace.analysis.matching.pairing import (
    Offset,
    SharedCollectives,
    align,
    estimate_offset_by_time,
    estimate_offsets,
    offsets_between,
    pair,
)
from dptrace.core.intervals import Int64
from tests.support.rank_cases import Call, rank, reduce, shifted

MS = 1_000_000
WHOLE_TRACE = ("whole trace",)


def plan(count: int, seed: int = 0) -> list[Call]:
    ends = np.cumsum(np.random.default_rng(seed).integers(300_000, 900_000, count))
    return [reduce(0, end) for end in ends.tolist()]


@pytest.mark.parametrize("ppm", [0, 100])
def test_ranks_without_a_step_in_common_are_introduced_by_their_times(ppm: float) -> None:
    """No marks, different starts, a shifted and drifting clock: everything that both ranks recorded is paired."""
    calls = plan(500)
    table = calls_of([rank(0, calls[:400], WHOLE_TRACE), shifted(rank(1, calls[90:], WHOLE_TRACE), -700 * MS, ppm)])

    row, _ = pair(table)

    assert row[90:400].tolist() == row[400:710].tolist()
    assert 500 == len(set(row.tolist()))


def test_what_ended_far_from_all_is_matched_where_nothing_else_can_be() -> None:
    """An all-to-all may end milliseconds apart; between its neighbors there is one open call on each rank."""
    calls = plan(20)
    step, begin, end, what = calls[7]
    odd = [*calls[:7], (step, begin, end + 250_000, what), *calls[8:15], *calls[16:]]

    row, _ = pair(calls_of([rank(0, calls), rank(1, odd), rank(2, calls)]))

    assert np.delete(row[:20], 15).tolist() == row[20:39].tolist()


@pytest.mark.slow
def test_many_calls_cost_little() -> None:
    """Twice 40,000 calls of one size without marks, one of them missing: under a second of CPU."""
    calls = plan(40_000)
    table = calls_of([rank(0, calls, WHOLE_TRACE), rank(1, calls[:9_000] + calls[9_001:], WHOLE_TRACE)])

    before = time.process_time()
    row, _ = pair(table)

    assert time.process_time() - before < 3
    assert np.delete(row[:40_000], 9_000).tolist() == row[40_000:].tolist()


def test_on_a_cpu_the_order_of_starts_stands_whatever_the_ends_say() -> None:
    """Two concurrent calls on gloo's two threads may end in different orders on different ranks."""
    one = [reduce(0, 5 * MS, length=4 * MS), reduce(0, 3 * MS, length=1 * MS), *_steady()]
    two = [reduce(0, 3 * MS, length=2 * MS), reduce(0, 5 * MS, length=3 * MS), *_steady()]

    matches = match([rank(0, one, on_cpu=True), rank(1, two, on_cpu=True)])

    assert [[i, i] for i in range(len(one))] == sorted(matches.member.tolist())
    assert matches.complete.all()
    assert () == matches.notes


def test_calls_are_in_the_order_of_their_launches() -> None:
    """Not in the order of their starts, if streams of one group overtake each other."""
    calls = [reduce(0, 1 * MS), reduce(0, 2 * MS), *_steady()]
    right, turned = rank(0, calls, on_cpu=True), rank(1, calls, on_cpu=True)
    launched = np.arange(len(calls), dtype=np.int64)
    turned = replace(turned, timeline=replace(turned.timeline, launch_ns=np.array([1, 0, *launched[2:]])))
    right = replace(right, timeline=replace(right.timeline, launch_ns=launched))
    table = pair(calls_of([right, turned]))[0].reshape(2, -1)

    assert table[1].tolist() == [table[0][1], table[0][0], *table[0][2:]]


def _steady() -> list[Call]:
    return [reduce(1, 10 * MS + i * MS, 8_000, 100_000) for i in range(20)]


# Clock offsets from the ends of synchronizing collectives.


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

    return SharedCollectives(end - length, end, redact(begin), redact(other), length)


def estimate_offset(one: SharedCollectives) -> Offset:
    """Return the offset of one pair of devices."""
    return offsets_between([one])[0]


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

    assert abs(estimate_offset(replace(good, other_end_ns=end)).ahead_ns) < 5_000


def test_one_collective_is_bounded_by_causality() -> None:
    """Neither can have left before the other arrived, and nothing else is known."""
    one = SharedCollectives(*(np.array([value], np.int64) for value in (0, 30_000, 1_000_000, 1_020_000, 20_000)))
    offset = estimate_offset(one)

    assert 990_000 == offset.ahead_ns
    assert 30_000 == offset.uncertainty_ns


def test_differences_smaller_than_a_microsecond_are_not_reported() -> None:
    """Traces may round to microseconds."""
    assert 1_000 == estimate_offset(shared(50, jitter=0)).uncertainty_ns


def test_pairs_compared_at_once_have_the_offsets_that_each_has_alone() -> None:
    """Pairs that share 3 to 40 collectives, with and without ties, drift and late starts, in any order."""
    pairs = [
        shared(count, ahead, ppm, jitter, seed=seed)
        for seed, (count, ahead, ppm, jitter) in enumerate(
            [(40, 7_000_000, 900, 3_000), (3, 0, 0, 0), (40, -5, 0, 50_000), (9, 10**9, 0, 3_000), (40, 1, 90_000, 0)]
        )
    ]

    assert [estimate_offset(one) for one in pairs] == offsets_between(pairs)
    assert any(offset.drift for offset in offsets_between(pairs))


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


# Alignment of two sequences of times.


SORTS = np.zeros(400, np.int32)
times = st.lists(st.integers(0, 60), max_size=7).map(sorted)


def row(values: list[int]) -> Int64:
    return np.array(values, np.int64)


def worth(first: list[int], second: list[int], reach: int, fits: list[list[bool]]) -> int:
    """Try every way to pair without crossing."""

    @cache
    def best(i: int, j: int) -> int:
        if i == len(first) or j == len(second):
            return 0
        here = reach - abs(first[i] - second[j])
        paired = here + best(i + 1, j + 1) if here > 0 and fits[i][j] else 0
        return max(paired, best(i + 1, j), best(i, j + 1))

    return best(0, 0)


@pytest.mark.heavy
@given(times, times, st.integers(1, 30), st.randoms(use_true_random=False))
def test_pairs_are_worth_as_much_as_the_best_of_all_ways(a: list[int], b: list[int], reach: int, draw: object) -> None:
    """The sum equals that of a search through all pairings; pairs do not cross, are within reach, and fit."""
    fits = [[draw.random() < 0.8 for _ in b] for _ in a]  # type: ignore[attr-defined]
    table = np.array(fits, np.bool_).reshape(len(a), len(b))

    i, j = align(row(a), row(b), reach, lambda x, y: table[x, y])

    apart = np.abs(row(a)[i] - row(b)[j])
    assert (np.diff(i) > 0).all()
    assert (np.diff(j) > 0).all()
    assert (apart < reach).all()
    assert table[i, j].all()
    assert worth(a, b, reach, fits) == int((reach - apart).sum())


def test_clusters_too_large_to_try_are_looked_at_more_closely() -> None:
    """Many times close together, one of them missing on one side, still find their own partners."""
    first = np.arange(0, 3_000_000, 1_000, dtype=np.int64)
    second = np.delete(first + 40, 1_234)
    assert len(first) * len(second) > module._CELLS

    i, j = align(first, second, 5_000)

    assert [*range(1_234), *range(1_235, 3_000)] == i.tolist()
    assert [*range(2_999)] == j.tolist()


def test_very_many_equal_times_are_paired_in_order() -> None:
    """Only their order distinguishes them; the search ends."""
    i, j = align(np.zeros(700, np.int64), np.zeros(600, np.int64), 10)

    assert i.tolist() == j.tolist() == list(range(600))


@pytest.mark.heavy
@given(st.integers(-(10**9), 10**9), st.integers(0, 300), st.integers(0, 300))
def test_an_offset_is_found_from_irregular_times(ahead: int, begin: int, end: int) -> None:
    """Whichever of the events each sequence has, the vote finds the offset of their clocks."""
    ends = np.cumsum(np.random.default_rng(4).integers(1_000_000, 9_000_000, 400)).astype(np.int64)
    first, second = ends[begin // 3 :], ends[: 400 - end // 3] + ahead

    guess = estimate_offset_by_time(first, second, SORTS[: len(first)], SORTS[: len(second)])

    assert guess is not None
    assert ahead == guess[0]


def test_regular_times_leave_the_smallest_offset() -> None:
    """If every multiple of a period fits, the smallest offset is chosen."""
    ends = np.arange(0, 10**9, 10**7, dtype=np.int64)

    assert (3_000, 100_000) == estimate_offset_by_time(ends, ends + 3_000, SORTS[:100], SORTS[:100])


def test_unlike_things_give_no_offset() -> None:
    """Times of different sorts cannot be compared, and unrelated times do not agree on an offset."""
    draw = np.random.default_rng(0)
    first, second = (np.sort(draw.integers(0, 10**13, 100)) for _ in range(2))

    assert estimate_offset_by_time(first, first, SORTS[:100], SORTS[:100] + 1) is None
    assert estimate_offset_by_time(first, second, SORTS[:100], SORTS[:100]) is None
