"""The formulas of collectives, against a count of each algorithm's messages."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.model.collectives import (
    ALGORITHMS,
    ALL_REDUCES,
    COUNTED,
    KINDS,
    algorithm_of,
    all_reduce_volume,
    bus_factor,
    crossing_bytes,
)
from dptrace.model.training.communication import Link
from dptrace.simulate.catalog import explain
from dptrace.simulate.explanation import Settings

RANKS = st.integers(2, 64)


def ring(ranks: int, passes: int) -> tuple[int, float]:
    """Count the steps of a ring, and what one link carries of a message of size 1, by going round."""
    steps, carried = 0, 0.0
    for _ in range(passes):
        for _ in range(ranks - 1):  # each rank hands one chunk to the next
            steps, carried = steps + 1, carried + 1 / ranks
    return steps, carried


def tree(ranks: int) -> int:
    """Count the rounds until every rank has the message, if each holder sends it to one other rank per round."""
    have, rounds = 1, 0
    while have < ranks:
        have, rounds = min(2 * have, ranks), rounds + 1
    return rounds


@given(RANKS)
def test_a_ring_pays_each_step_and_carries_each_chunk(ranks: int) -> None:
    """All-reduce goes round twice, all-gather, reduce-scatter and all-to-all once."""
    for name, passes in {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}.items():
        steps, carried = ring(ranks, passes)
        algorithm = algorithm_of("gloo", name)
        assert algorithm.hops(ranks) == steps
        assert algorithm.share(ranks) == pytest.approx(carried)


@given(RANKS)
def test_a_binomial_tree_pays_whole_messages_each_round(ranks: int) -> None:
    """Gloo's broadcast forwards whole messages."""
    algorithm = algorithm_of("gloo", "broadcast")

    assert (tree(ranks), tree(ranks)) == (algorithm.hops(ranks), algorithm.share(ranks))
    assert math.ceil(math.log2(ranks)) == tree(ranks)


@given(RANKS, st.floats(1e-7, 1e-3), st.floats(1e-12, 1e-8), st.integers(1, 10**9))
def test_the_guides_formulas(ranks: int, alpha: float, beta: float, size: int) -> None:
    """Sections 3.2 to 3.4: naive, tree, ring and halving-doubling all-reduce."""
    depth = math.ceil(math.log2(ranks))
    written = {
        "naive all-reduce": 2 * (ranks - 1) * alpha + 2 * (ranks - 1) * size * beta,
        "tree all-reduce": 2 * depth * alpha + 2 * depth * size * beta,
        "ring all-reduce": 2 * (ranks - 1) * alpha + 2 * (ranks - 1) * size / ranks * beta,
        "halving-doubling all-reduce": 2 * depth * alpha + 2 * (ranks - 1) * size / ranks * beta,
    }
    for name, seconds in written.items():
        assert ALGORITHMS[name].seconds(ranks, size, alpha, beta) == pytest.approx(seconds)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_busbw_is_one_links_where_the_algorithm_is_optimal(kind: str, ranks: int) -> None:
    """Without latency, busbw over NCCL's ring is the bandwidth of a link, for any kind and number of ranks."""
    seconds = algorithm_of("nccl", kind).seconds(ranks, 1e9, 0, 1e-9)

    assert 1e9 / seconds * bus_factor(kind, ranks) == pytest.approx(1e9)


@given(RANKS)
def test_bus_factors_of_kinds_that_links_does_not_measure(ranks: int) -> None:
    """nccl-tests gives gather and scatter (n-1)/n and reduce 1, and has no bus bandwidth of an expert's dispatch."""
    assert bus_factor("gather", ranks) == bus_factor("scatter", ranks) == pytest.approx(1 - 1 / ranks)
    assert 1 == bus_factor("reduce", ranks)
    assert all(math.isnan(bus_factor(kind, ranks)) for kind in ("dispatch", "combine", "put_get", "signal", "barrier"))


def test_every_kind_says_what_is_counted_and_has_an_algorithm() -> None:
    """For gloo and NCCL; a single rank pays nothing."""
    for kind in COUNTED:
        for backend in ("gloo", "nccl"):
            algorithm = algorithm_of(backend, kind)
            assert 0 == algorithm.hops(1) * algorithm.share(1)


# What each all-reduce algorithm sends; tests/trainers/parts/test_collectives.py counts real messages.


@pytest.mark.parametrize("name", ALL_REDUCES)
@pytest.mark.parametrize("ranks", [2, 3, 8])
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


@pytest.mark.heavy
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
