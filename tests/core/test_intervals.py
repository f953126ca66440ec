"""Interval arithmetic, compared with sets of nanoseconds."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from dptrace.core.intervals import IntervalSet, covered, intersect, mask_of, median, subtract, union, unique

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


# Functions of NumPy arrays.


def test_distinct_values_are_those_of_numpy() -> None:
    """In the same order and of the same type."""
    for values in ([], [5], [3, -1, 3, 2, -1], [1, 1, 1]):
        array = np.array(values, np.int32)
        assert np.unique(array).tolist() == unique(array).tolist()
        assert np.int32 == unique(array).dtype


@pytest.mark.heavy
def test_masked_arrays_are_not_imported() -> None:
    """They would take a twentieth of a short command."""
    code = (
        "import sys, numpy; from dptrace.core.intervals import median, unique; "
        "unique(numpy.arange(3)); median(numpy.arange(3)); print('numpy.ma' in sys.modules)"
    )

    assert "False" == subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()


SHAPES = array_shapes(max_dims=2, max_side=7)


@pytest.mark.heavy
@given(
    arrays(np.int64, SHAPES) | arrays(np.float64, SHAPES, elements=st.floats(-1e300, 1e300) | st.just(np.nan)),
    st.data(),
)
def test_a_median_is_that_of_numpy(values: NDArray[Any], data: st.DataObject) -> None:
    """Along each axis; of whole numbers, numbers and values that are none."""
    axis = data.draw(st.integers(0, values.ndim - 1))

    assert np.array_equal(np.median(values, axis=axis), median(values, axis=axis), equal_nan=True)


def test_a_mask_marks_the_indices() -> None:
    """And none for -1."""
    for indices in ([], [2], [0, 3, 3], [-1, 1], np.array([-1, -1], np.int64)):
        assert [i in indices for i in range(4)] == mask_of(indices, 4).tolist()
