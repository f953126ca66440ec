"""Blocks: a free belongs to the allocation before it at its address."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dptrace.analysis.memory.blocks import blocks_of, continued_totals
from dptrace.readers.trace import TOTAL_UNKNOWN
from tests.support.memory_files import events_of, replay


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Draw allocations and frees as an allocator makes them, the first frees of blocks that were there before."""
    live: dict[int, int] = {}
    done = [(1000 + i, -draw(st.integers(1, 99))) for i in range(draw(st.integers(0, 2)))]
    for _ in range(draw(st.integers(1, 40))):
        free = [address for address in range(6) if address not in live]
        if live and (not free or draw(st.booleans())):
            address = draw(st.sampled_from(sorted(live)))
            done.append((address, -live.pop(address)))
        else:
            address = draw(st.sampled_from(free))
            live[address] = draw(st.integers(1, 99))
            done.append((address, live[address]))
    return done


@pytest.mark.heavy
@given(changes())
def test_blocks_are_those_of_a_replay(made: list[tuple[int, int]]) -> None:
    """For any sequence, size, birth and death of each block equal those of a dictionary of live blocks."""
    blocks = blocks_of(events_of(made))

    columns = (blocks.bytes.tolist(), blocks.born.tolist(), blocks.freed.tolist())
    assert replay(made).lives == sorted(zip(*columns, strict=True))


def test_a_lost_free_ends_no_other_block() -> None:
    """Two allocations at one address: the first block's free is missing, the second has the free that follows."""
    blocks = blocks_of(events_of([(1, 8), (1, 4), (1, -4)]))

    assert [(8, 0, -1), (4, 1, 2)] == list(
        zip(blocks.bytes.tolist(), blocks.born.tolist(), blocks.freed.tolist(), strict=True)
    )


def test_totals_that_a_file_lacks_are_sums() -> None:
    """Torch before 1.11 wrote none: they count from 0."""
    events = events_of([(1, 8), (2, 4), (1, -8)])
    without = replace(events, allocated=np.full(3, TOTAL_UNKNOWN))

    continued, gaps = continued_totals(without)

    assert ([8, 12, 4], 0) == (continued.allocated.tolist(), gaps)


def test_missing_events_are_counted() -> None:
    """A total that is not the one before plus the event's bytes shows that events are missing."""
    events = events_of([(1, 8), (2, 4), (1, -8)])
    events.allocated[1:] += 100

    assert 1 == continued_totals(events)[1]
