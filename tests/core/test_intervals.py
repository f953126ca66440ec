"""Interval arithmetic, compared with sets of nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.core.intervals import IntervalSet, covered, intersect, subtract, union

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)
times = st.lists(st.integers(-5, 70), max_size=10)


def as_set(raw: list[tuple[int, int]]) -> IntervalSet:
    return union(np.array([a for a, _ in raw], np.int64), np.array([b for _, b in raw], np.int64))


def instants(raw: list[tuple[int, int]]) -> set[int]:
    return {t for a, b in raw for t in range(a, b)}


def listed(intervals: IntervalSet) -> set[int]:
    return {t for a, b in zip(*intervals, strict=True) for t in range(a, b)}


@given(pairs)
def test_union_covers_each_instant_once(raw: list[tuple[int, int]]) -> None:
    """A union holds the instants of its parts, in sorted, disjoint intervals that do not touch."""
    merged = as_set(raw)

    assert instants(raw) == listed(merged)
    assert all(merged[1][:-1] < merged[0][1:])


@pytest.mark.heavy
@given(pairs, pairs)
def test_intersect_and_subtract_agree_with_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    """Intersection and difference are those of the sets of instants."""
    assert instants(a) & instants(b) == listed(intersect(as_set(a), as_set(b)))
    assert instants(a) - instants(b) == listed(subtract(as_set(a), as_set(b)))


@pytest.mark.heavy
@given(pairs, times)
def test_covered_counts_instants_before_a_time(raw: list[tuple[int, int]], at: list[int]) -> None:
    """The prefix sum at a time is the number of covered instants before it."""
    expected = [sum(t < time for t in instants(raw)) for time in at]

    assert expected == covered(as_set(raw), np.array(at, np.int64)).tolist()
