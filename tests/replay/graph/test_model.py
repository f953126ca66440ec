"""The order of tasks, and edges that contradict it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.replay.graph.model import Edge, EdgeKind, order_tasks


def edges(*pairs: tuple[int, int, EdgeKind]) -> Edge:
    table = np.array(pairs, np.int64).reshape(-1, 3)
    zero = np.zeros(len(table), np.int64)
    return Edge(table[:, 0], table[:, 1], zero, zero.astype(np.bool_), table[:, 2].astype(np.uint8))


@pytest.mark.heavy
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=24), st.permutations(range(8)))
def test_every_task_comes_once_and_after_what_it_waits_for(pairs: list[tuple[int, int]], start: list[int]) -> None:
    """Whatever cycles the edges form, the order has all tasks, and respects the edges that remain."""
    wanted = edges(*((a, b, EdgeKind.STREAM) for a, b in pairs if a != b))

    kept, first, order = order_tasks(wanted, np.array(start, np.int64))

    place = np.argsort(order)
    assert list(range(8)) == sorted(order.tolist())
    assert (place[kept.src] < place[kept.dst]).all()
    assert [int((kept.dst == task).sum()) for task in range(8)] == np.diff(first).tolist()


def test_no_edge_is_left_out_without_a_cycle() -> None:
    """Edges that point back in recorded time, as clocks that differ let them, are kept."""
    kept, _, _ = order_tasks(edges((1, 0, EdgeKind.LAUNCH), (2, 1, EdgeKind.HOST)), np.array([1, 2, 3], np.int64))

    assert 2 == len(kept)


def test_the_uncertain_edge_of_a_cycle_is_left_out() -> None:
    """Of two edges that close a cycle, the one that was inferred from time goes, even if both point back."""
    times = np.array([5, 5], np.int64)
    kept, _, _ = order_tasks(edges((1, 0, EdgeKind.TIMED), (0, 1, EdgeKind.STREAM)), times)

    assert [EdgeKind.STREAM] == kept.kind.tolist()
