"""Grids of running sums: exact at their times, and near enough between them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dptrace.viewers.gantt.tiles.index.blocks import index_lane
from dptrace.viewers.gantt.tiles.index.grid import FINER, column_cover, make_grids, nested_cover
from dptrace.viewers.gantt.tiles.index.lane import Lane
from tests.viewers.gantt.tiles.index.lanes import brute_cover, random_lane

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


@pytest.mark.parametrize("above", [-4, 0, 1, 5])
def test_columns_of_a_power_of_two_are_exact(above: int) -> None:
    """From a grid, or by search below its finest level; also beyond the lane's end."""
    level, count = max(0, GRIDS[0].level + above), 512
    first = max(0, (int(LANE.reach[-1]) >> level) - 300)
    edges = ((first + np.arange(count + 1)) << level).astype(float)
    cover = nested_cover(LANE, GRIDS, level, first, count)
    for slot, category in enumerate(LANE.categories):
        assert brute_cover(COLUMNS, category, edges).tolist() == cover[slot].tolist()


@pytest.mark.parametrize("begin", [0, -40_000])
def test_a_view_of_everything_is_off_by_less_than_a_64th_of_a_column(begin: int) -> None:
    """Where a pixel holds many columns of a grid; what is before the first time is exact."""
    end = float(LANE.reach[-1]) + 1000
    width = int((end - begin) / ((FINER << GRIDS[0].level) * 1.3))
    edges = np.linspace(begin, end, width + 1)
    cover = column_cover(LANE, GRIDS, edges)
    for slot, category in enumerate(LANE.categories):
        off = np.abs(np.diff(cover[slot]) - np.diff(brute_cover(COLUMNS, category, edges)))

        assert off.max() <= (edges[1] - edges[0]) / (2 * FINER)


def test_a_closer_view_is_exact() -> None:
    """Where a pixel holds fewer columns of the grid."""
    edges = np.linspace(1e6, 3e6, 700)
    cover = column_cover(LANE, GRIDS, edges)
    for slot, category in enumerate(LANE.categories):
        assert np.abs(brute_cover(COLUMNS, category, edges) - cover[slot]).max() < 1e-6
