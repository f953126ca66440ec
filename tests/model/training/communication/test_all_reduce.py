"""The algorithms of an all-reduce, with the documents' numbers."""

from __future__ import annotations

import pytest

from dptrace.model.training.communication.all_reduce import AllReduce, all_reduces
from dptrace.model.training.communication.network import Link, Network, parse_link

PCIE = Network(Link("PCIe", 30e-6, 25e9), Link("PCIe", 30e-6, 25e9), 1024)


def by_name(network: Network, size: float, ranks: int) -> dict[str, AllReduce]:
    return {one.algorithm: one for one in all_reduces(network, size, ranks)}


def test_the_workshops_comparison() -> None:
    """GPU workshop, ring all-reduce, part 7: 208 MB on 4 GPUs: 312 MB each way in 6 steps; the leader 624 + 624."""
    found = by_name(PCIE, 208e6, 4)

    assert (312e6, 6) == (found["ring"].sent_bytes, found["ring"].steps)
    assert 1248e6 == 2 * found["naive"].sent_bytes
    assert 624e6 == 2 * found["ring"].sent_bytes


@pytest.mark.parametrize(("ranks", "megabytes"), [(2, 208), (4, 312), (8, 364), (1000, 415.584)])
def test_the_workshops_volumes(ranks: int, megabytes: float) -> None:
    """GPU workshop, the math of 2(N-1)/N: it approaches twice the gradients."""
    assert pytest.approx(megabytes * 1e6) == by_name(PCIE, 208e6, ranks)["ring"].sent_bytes


def test_a_leader_of_a_hundred() -> None:
    """GPU workshop: 20.6 GB each way through the leader of 100 GPUs, 41 GB together, fifty times a ring's load."""
    found = by_name(PCIE, 208e6, 100)

    assert pytest.approx(20.6e9, rel=0.001) == found["naive"].sent_bytes
    assert pytest.approx(50) == found["naive"].sent_bytes / found["ring"].sent_bytes


def test_the_workshops_least_transfer() -> None:
    """GPU workshop, chart 2: 312 MB at 25 GB/s take 12 ms, plus the latency of six steps."""
    assert pytest.approx(312e6 / 25e9 + 6 * 30e-6) == by_name(PCIE, 208e6, 4)["ring"].seconds


def test_small_messages_want_few_steps() -> None:
    """Guide, section 3.5: halving and doubling for small messages, as fast as the ring for large ones."""
    small, large = by_name(PCIE, 1e3, 64), by_name(PCIE, 1e9, 64)

    assert small["ring"].seconds > 10 * small["halving-doubling"].seconds
    assert pytest.approx(large["ring"].seconds, rel=0.1) == large["halving-doubling"].seconds
    assert large["tree"].seconds > 5 * large["ring"].seconds


def test_levels_spare_the_slow_link() -> None:
    """Guide, section 3.6: 8 nodes of 8: 14 steps within and 6 between nodes instead of 126, an eighth of the bytes."""
    found = by_name(Network(parse_link("nvlink4"), parse_link("ib-ndr"), 8), 1e9, 64)

    assert (126, 20) == (found["ring"].steps, found["hierarchical-sharded"].steps)
    assert found["hierarchical-sharded"].seconds < found["ring"].seconds / 4
