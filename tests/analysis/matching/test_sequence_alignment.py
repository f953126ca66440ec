"""Alignment of two sequences of times."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dptrace.analysis.matching import sequence_alignment as module
from dptrace.analysis.matching.sequence_alignment import align, estimate_offset_by_time
from dptrace.core.intervals import Int64

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
