"""Functions of NumPy arrays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dptrace.core.arrays import mask_of, unique


@pytest.mark.parametrize("values", [[], [5], [3, -1, 3, 2, -1], [1, 1, 1]])
def test_distinct_values_are_those_of_numpy(values: list[int]) -> None:
    """In the same order and of the same type."""
    array = np.array(values, np.int32)

    assert np.unique(array).tolist() == unique(array).tolist()
    assert np.int32 == unique(array).dtype


def test_masked_arrays_are_not_imported() -> None:
    """They would take a twentieth of a short command."""
    code = (
        "import sys, numpy; from dptrace.core.arrays import unique; "
        "unique(numpy.arange(3)); print('numpy.ma' in sys.modules)"
    )

    assert "False" == subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("indices", [[], [2], [0, 3, 3], [-1, 1], np.array([-1, -1], np.int64)])
def test_a_mask_marks_the_indices(indices: list[int]) -> None:
    """And none for -1."""
    assert [i in indices for i in range(4)] == mask_of(indices, 4).tolist()
