"""Structs of columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dptrace.core.columns import Columns
from dptrace.core.intervals import Int64


class Calls(Columns, frozen=True):
    """Two columns, and what belongs to both."""

    start_ns: Int64
    kind: NDArray[np.uint8]
    names: tuple[str, ...] = ()


CALLS = Calls(np.array([5, 6, 7]), np.array([1, 0, 1], np.uint8), ("a", "b"))


def test_rows_are_taken_by_mask_indices_and_slice() -> None:
    """In every column; what is no column stays."""
    assert [[5, 7], [7, 5], [6, 7]] == [
        CALLS.take(rows).start_ns.tolist() for rows in (CALLS.kind == 1, np.array([2, 0]), slice(1, 3))
    ]
    assert ([0, 1], ("a", "b")) == (CALLS.take(slice(1, 3)).kind.tolist(), CALLS.take(slice(1, 3)).names)


def test_rows_of_parts_are_one_after_the_other_and_empty_has_none_of_the_same_types() -> None:
    """Empty parts change neither rows nor types."""
    whole, none = Calls.concat([CALLS, Calls.empty(), CALLS.take(slice(0, 1))]), Calls.empty()

    assert (4, 0) == (len(whole), len(none))
    assert [5, 6, 7, 5] == whole.start_ns.tolist()
    assert [np.int64, np.uint8] == [none.start_ns.dtype, none.kind.dtype] == [whole.start_ns.dtype, whole.kind.dtype]
    assert ("a", "b") == whole.names
