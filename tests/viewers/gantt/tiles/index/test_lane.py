"""What a lane answers, against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dptrace.viewers.gantt.tiles.index.blocks import LaneColumns, index_lane
from dptrace.viewers.gantt.tiles.index.lane import Lane
from tests.viewers.gantt.tiles.index.lanes import brute_cover, lanes, random_lane

shares = st.floats(-0.1, 1.1, allow_nan=False)


def place(lane: LaneColumns, share: float) -> float:
    """Return a time at a share of a lane, in whole ns."""
    if not len(lane.start_ns):
        return float(round(share * 100))
    end = int((lane.start_ns + lane.duration_ns).max())
    return float(round(int(lane.start_ns[0]) + share * (end - int(lane.start_ns[0]))))


@given(lanes(), shares, shares, st.integers(1, 40), st.booleans())
def test_cover_is_exact(lane: LaneColumns, one: float, other: float, width: int, whole: bool) -> None:
    """To 0 ns at whole times, with any number of intervals to a column, and to rounding at others."""
    low, high = sorted((place(lane, one), place(lane, other)))
    edges = np.linspace(low, high, width + 1)
    edges = np.rint(edges) if whole else edges
    asked = Lane(index_lane(lane))
    cover = asked.cover(edges)
    for slot, category in enumerate(asked.categories):
        expected = brute_cover(lane, category, edges)

        assert np.abs(expected - cover[slot]).max() <= (0 if whole else 1e-5 * max(1, np.abs(edges).max() * 1e-9))


def test_no_edges_and_no_intervals_cover_nothing() -> None:
    """Rows for the categories that there are."""
    assert (3, 0) == Lane(index_lane(random_lane(10_000))).cover(np.zeros(0)).shape
    assert (0, 2) == Lane(index_lane(random_lane(0))).cover(np.array([0.0, 9.0])).shape


def test_cover_is_exact_where_a_column_holds_many_blocks() -> None:
    """A hundred thousand intervals in seven columns: only the block of each edge is read."""
    lane = random_lane(100_000)
    asked = Lane(index_lane(lane))
    edges = np.rint(np.linspace(-100, int(lane.start_ns[-1]) + 5_000, 8))
    cover = asked.cover(edges)
    for slot, category in enumerate(asked.categories):
        assert brute_cover(lane, category, edges).tolist() == cover[slot].tolist()


@given(lanes(), shares, shares, st.integers(0, 500), st.integers(0, 300))
def test_a_window_returns_what_touches_it(
    lane: LaneColumns, one: float, other: float, shortest: int, most: int
) -> None:
    """All of it if there is little, else what is long enough; with its category, name and stream."""
    low, high = sorted((place(lane, one), place(lane, other)))
    rows, whole = Lane(index_lane(lane)).window(low, high, shortest, most)
    touches = (lane.start_ns < high) & (lane.start_ns + lane.duration_ns > low)
    expected = np.flatnonzero(touches if whole else touches & (lane.duration_ns >= shortest))

    assert expected.tolist() == rows.position.tolist()
    for given_column, found in (
        (lane.start_ns, rows.start_ns),
        (lane.duration_ns, rows.duration_ns),
        (lane.category, rows.category),
        (lane.name, rows.name),
        (lane.stream, rows.stream),
    ):
        assert given_column[expected].tolist() == found.tolist()


@given(lanes(), shares, shares)
def test_touching_counts_what_touches_a_window(lane: LaneColumns, one: float, other: float) -> None:
    """Its ends included, as in the page."""
    low, high = sorted((place(lane, one), place(lane, other)))
    expected = (lane.start_ns <= high) & (lane.start_ns + lane.duration_ns >= low)

    assert int(expected.sum()) == Lane(index_lane(lane)).touching(low, high)


@given(lanes(), shares, st.integers(0, 200))
def test_at_finds_the_shortest_interval_at_a_time(lane: LaneColumns, share: float, slack: int) -> None:
    """Else the next one, or the one that began before, if either is near."""
    time = place(lane, share)
    asked = Lane(index_lane(lane))
    found = asked.at(time, slack)
    runs = (lane.start_ns <= time) & (lane.start_ns + lane.duration_ns > time)
    if runs.any():
        assert [int(lane.duration_ns[runs].min())] == found.duration_ns.tolist()
        assert runs[found.position[0]]
    elif len(found):
        start, end = int(found.start_ns[0]), int(found.start_ns[0] + found.duration_ns[0])
        assert max(start - time, time - end) <= slack
    else:
        following = int(np.searchsorted(lane.start_ns, time, "right"))
        if following < len(lane.start_ns):
            assert lane.start_ns[following] - time > slack
        if following:
            assert time - lane.start_ns[following - 1] - lane.duration_ns[following - 1] > slack


def test_rows_at_positions() -> None:
    """In the order asked for."""
    lane = random_lane(500)
    positions = np.array([499, 0, 64, 63])
    rows = Lane(index_lane(lane)).rows_at(positions)

    assert lane.start_ns[positions].tolist() == rows.start_ns.tolist()
    assert lane.category[positions].tolist() == rows.category.tolist()
    assert lane.name[positions].tolist() == rows.name.tolist()
