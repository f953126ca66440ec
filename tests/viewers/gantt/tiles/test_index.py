"""The index of a lane: what its blocks hold."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.viewers.gantt.tiles import index as block_index
from dptrace.viewers.gantt.tiles.index import (
    BLOCK,
    FINER,
    Lane,
    LaneColumns,
    column_cover,
    index_lane,
    make_grids,
    nested_cover,
)
from tests.viewers.gantt.tiles.lanes import brute_cover, columns_of, lanes, random_lane


@pytest.mark.heavy
@given(lanes())
def test_a_block_knows_what_its_categories_covered_before(lane: LaneColumns) -> None:
    """What they cover before its first start is the sum of gains before it, less what lasts beyond that start."""
    index = index_lane(lane)
    first = index.blocks["first"]
    for slot, category in enumerate(index.categories):
        before = index.blocks["before"][:, slot] - np.maximum(0, index.blocks["reach"][:, slot] - first)

        assert brute_cover(lane, category, first.astype(float)).tolist() == before.tolist()


@pytest.mark.heavy
@given(lanes())
def test_heads_bound_the_intervals_of_their_blocks(lane: LaneColumns) -> None:
    """First start, latest end, longest duration, and the latest end of all blocks so far."""
    first, end, longest, reach = index_lane(lane).heads
    for number in range(len(first)):
        part = slice(number * BLOCK, (number + 1) * BLOCK)
        ends = lane.start_ns[part] + lane.duration_ns[part]

        assert lane.start_ns[part][0] == first[number]
        assert (ends.max(), lane.duration_ns[part].max()) == (end[number], longest[number])
        assert (lane.start_ns + lane.duration_ns)[: (number + 1) * BLOCK].max() == reach[number]


def test_chunks_make_the_same_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a chunk of intervals leaves behind is carried into the next one."""
    lane = random_lane(1000)
    whole = index_lane(lane)
    monkeypatch.setattr(block_index, "_CHUNK", 2 * BLOCK)
    parts = index_lane(lane)

    assert whole.heads.tolist() == parts.heads.tolist()
    assert whole.blocks.tobytes() == parts.blocks.tobytes()


def test_times_take_four_bytes_unless_one_is_longer_than_four_seconds() -> None:
    """And what overlaps add to each other is stored for lanes with overlaps only."""
    one, two = np.array([0, 10]), np.array([3, 3])
    narrow = index_lane(columns_of(one, two, one)).blocks.dtype
    wide = index_lane(columns_of(one * 10**9, two, one)).blocks.dtype
    overlapping = index_lane(columns_of(one, two * 9, one)).blocks.dtype

    assert (4, 8) == (narrow["start"].base.itemsize, wide["start"].base.itemsize)
    assert (False, True) == ("gain" in (narrow.names or ()), "gain" in (overlapping.names or ()))


# Grids of running sums: exact at their times, and near enough between them.


COLUMNS = random_lane(200_000, seed=1)
LANE = Lane(index_lane(COLUMNS))
GRIDS = make_grids(LANE)


def test_small_lanes_have_no_grid() -> None:
    """Their few blocks are read instead."""
    assert [] == make_grids(Lane(index_lane(random_lane(5_000))))


def test_grids_nest_and_are_coarse_at_last() -> None:
    """Each one is an eighth of the one before."""
    assert len(GRIDS) > 1
    for fine, coarse in pairwise(GRIDS):
        assert fine.level + 3 == coarse.level
        nested = fine.cover_ns[:, ::8]

        assert nested.tolist() == coarse.cover_ns[:, : nested.shape[1]].tolist()


def test_columns_of_a_power_of_two_are_exact() -> None:
    """From a grid, or by search below its finest level; also beyond the lane's end."""
    for above in (-4, 0, 1, 5):
        level, count = max(0, GRIDS[0].level + above), 512
        first = max(0, (int(LANE.reach[-1]) >> level) - 300)
        edges = ((first + np.arange(count + 1)) << level).astype(float)
        cover = nested_cover(LANE, GRIDS, level, first, count)
        for slot, category in enumerate(LANE.categories):
            assert brute_cover(COLUMNS, category, edges).tolist() == cover[slot].tolist(), above


def test_a_view_of_everything_is_off_by_less_than_a_64th_of_a_column() -> None:
    """Where a pixel holds many columns of a grid; what is before the first time is exact."""
    for begin in (0, -40_000):
        end = float(LANE.reach[-1]) + 1000
        width = int((end - begin) / ((FINER << GRIDS[0].level) * 1.3))
        edges = np.linspace(begin, end, width + 1)
        cover = column_cover(LANE, GRIDS, edges)
        for slot, category in enumerate(LANE.categories):
            off = np.abs(np.diff(cover[slot]) - np.diff(brute_cover(COLUMNS, category, edges)))

            assert off.max() <= (edges[1] - edges[0]) / (2 * FINER), begin


def test_a_closer_view_is_exact() -> None:
    """Where a pixel holds fewer columns of the grid."""
    edges = np.linspace(1e6, 3e6, 700)
    cover = column_cover(LANE, GRIDS, edges)
    for slot, category in enumerate(LANE.categories):
        assert np.abs(brute_cover(COLUMNS, category, edges) - cover[slot]).max() < 1e-6


# What a lane answers, against brute force.


shares = st.floats(-0.1, 1.1, allow_nan=False)


def place(lane: LaneColumns, share: float) -> float:
    """Return a time at a share of a lane, in whole ns."""
    if not len(lane.start_ns):
        return float(round(share * 100))
    end = int((lane.start_ns + lane.duration_ns).max())
    return float(round(int(lane.start_ns[0]) + share * (end - int(lane.start_ns[0]))))


@pytest.mark.heavy
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


@pytest.mark.heavy
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


@pytest.mark.heavy
@given(lanes(), shares, shares)
def test_touching_counts_what_touches_a_window(lane: LaneColumns, one: float, other: float) -> None:
    """Its ends included, as in the page."""
    low, high = sorted((place(lane, one), place(lane, other)))
    expected = (lane.start_ns <= high) & (lane.start_ns + lane.duration_ns >= low)

    assert int(expected.sum()) == Lane(index_lane(lane)).touching(low, high)


@pytest.mark.heavy
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
