"""Slices of a lane do not overlap, and there are no more lanes than needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.export.lane_packing import assign_lanes

slices = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=40).map(
    lambda pairs: sorted((start, start + length) for start, length in pairs)
)


def lanes(pairs: list[tuple[int, int]]) -> list[int]:
    starts, ends = (np.array([pair[k] for pair in pairs], np.int64) for k in (0, 1))
    return [int(lane) for lane in assign_lanes(starts, ends)]


def test_the_worked_example() -> None:
    """The docstring's example is correct."""
    assert [0, 1, 2, 1, 0, 0] == lanes([(0, 10), (4, 6), (5, 12), (6, 8), (12, 20), (20, 30)])


def test_nothing_gives_nothing() -> None:
    """No slice needs no lane."""
    assert [] == lanes([])


@given(slices)
def test_no_two_slices_of_a_lane_overlap(pairs: list[tuple[int, int]]) -> None:
    """In each lane every slice starts at or after the end of the one before."""
    ends: dict[int, int] = {}
    for (start, end), lane in zip(pairs, lanes(pairs), strict=True):
        assert ends.get(lane, start) <= start
        ends[lane] = end


@pytest.mark.heavy
@given(slices)
def test_there_are_as_many_lanes_as_slices_at_once(pairs: list[tuple[int, int]]) -> None:
    """Lanes are numbered without a gap, and a new one is opened only when all others are running."""
    given_lanes = lanes(pairs)
    for index, ((start, _), lane) in enumerate(zip(pairs, given_lanes, strict=True)):
        running = {other for (_, end), other in zip(pairs[:index], given_lanes[:index], strict=True) if end > start}
        assert lane == min(set(range(len(pairs))) - running)
