"""What each all-reduce algorithm sends; tests/trainers/parts/communication/test_all_reduce.py counts real messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.model.all_reduce_volume import ALL_REDUCES, all_reduce_volume, crossing_bytes
from dptrace.simulate.catalog import explain
from dptrace.simulate.settings import Link, Settings


@pytest.mark.parametrize("name", ALL_REDUCES)
@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 9])
def test_times_are_those_of_the_simulated_messages(name: str, ranks: int) -> None:
    """dptrace explain sends the messages one by one over links of 5 µs and 25 GB/s."""
    link = Link("", 5e-6, 25e9)
    per_node = 2 if name == "hierarchical" else None
    cost = explain(name, Settings(ranks=ranks, size_bytes=90e6, link=link, between=link, node_size=per_node)).cost
    volume = all_reduce_volume(name, ranks, per_node)

    assert pytest.approx(cost.seconds) == volume.seconds(90e6, 5e-6, 1 / 25e9)
    assert pytest.approx(max(cost.sent_bytes)) == volume.sent_share * 90e6
    assert pytest.approx(sum(cost.sent_bytes)) == volume.total_share * 90e6


def test_the_workshops_volumes() -> None:
    """GPU workshop: of 208 MB on four GPUs, the naive root sends and receives 1,248 MB, and a rank of a ring 624."""
    load = {name: 2 * 208 * all_reduce_volume(name, 4).sent_share for name in ("naive", "ring")}

    assert {"naive": 1248, "ring": 624} == load


@given(st.integers(3, 64), st.floats(1e-7, 1e-4), st.floats(1e-12, 1e-9), st.floats(0, 1e-9))
def test_at_the_crossing_both_take_as_long(ranks: int, alpha: float, beta: float, gamma: float) -> None:
    """Below it, the tree with fewer messages is faster, above it the ring; from two links on they cross."""
    ring, tree = all_reduce_volume("ring", ranks), all_reduce_volume("tree", ranks)
    size = crossing_bytes(ring, tree, alpha, beta, gamma)
    if size is None:
        assert ring.hops <= tree.hops
        return

    assert pytest.approx(tree.seconds(size, alpha, beta, gamma)) == ring.seconds(size, alpha, beta, gamma)
    assert tree.seconds(size / 2, alpha, beta, gamma) < ring.seconds(size / 2, alpha, beta, gamma)
    assert ring.seconds(2 * size, alpha, beta, gamma) < tree.seconds(2 * size, alpha, beta, gamma)
