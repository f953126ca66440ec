"""The index of a lane: what its blocks hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from dptrace.viewers.gantt.tiles.index import blocks as block_index
from dptrace.viewers.gantt.tiles.index.blocks import BLOCK, LaneColumns, index_lane
from tests.viewers.gantt.tiles.index.lanes import brute_cover, columns_of, lanes, random_lane


@given(lanes())
def test_a_block_knows_what_its_categories_covered_before(lane: LaneColumns) -> None:
    """What they cover before its first start is the sum of gains before it, less what lasts beyond that start."""
    index = index_lane(lane)
    first = index.blocks["first"]
    for slot, category in enumerate(index.categories):
        before = index.blocks["before"][:, slot] - np.maximum(0, index.blocks["reach"][:, slot] - first)

        assert brute_cover(lane, category, first.astype(float)).tolist() == before.tolist()


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
