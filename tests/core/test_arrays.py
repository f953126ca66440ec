"""Functions of NumPy arrays."""

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

from dptrace.core.arrays import mask_of, median, unique


@pytest.mark.parametrize("values", [[], [5], [3, -1, 3, 2, -1], [1, 1, 1]])
def test_distinct_values_are_those_of_numpy(values: list[int]) -> None:
    """In the same order and of the same type."""
    array = np.array(values, np.int32)

    assert np.unique(array).tolist() == unique(array).tolist()
    assert np.int32 == unique(array).dtype


def test_masked_arrays_are_not_imported() -> None:
    """They would take a twentieth of a short command."""
    code = (
        "import sys, numpy; from dptrace.core.arrays import median, unique; "
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


def test_no_values_have_no_median() -> None:
    """It is NaN, as NumPy's is."""
    assert np.isnan(median([]))


@pytest.mark.parametrize("indices", [[], [2], [0, 3, 3], [-1, 1], np.array([-1, -1], np.int64)])
def test_a_mask_marks_the_indices(indices: list[int]) -> None:
    """And none for -1."""
    assert [i in indices for i in range(4)] == mask_of(indices, 4).tolist()
