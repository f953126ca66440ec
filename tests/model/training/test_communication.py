"""The algorithms of an all-reduce, with the documents' numbers."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace import predict
from dptrace.model.training.communication import (
    Link,
    Network,
    all_reduces,
    ccr,
    crossover_bytes,
    level,
    message_costs,
    reduce_seconds,
)

PCIE = Network(Link("PCIe", 30e-6, 25e9), Link("PCIe", 30e-6, 25e9), 1024)


def by_name(network: Network, size: float, ranks: int) -> dict[str, dict[str, Any]]:
    return {one["algorithm"]: one for one in all_reduces(network, size, ranks)}


def test_the_workshops_comparison() -> None:
    """GPU workshop, ring all-reduce, part 7: 208 MB on 4 GPUs: 312 MB each way in 6 steps; the leader 624 + 624."""
    found = by_name(PCIE, 208e6, 4)

    assert (312e6, 6) == (found["ring"]["sent_bytes"], found["ring"]["steps"])
    assert 1248e6 == 2 * found["naive"]["sent_bytes"]
    assert 624e6 == 2 * found["ring"]["sent_bytes"]


def test_a_leader_of_a_hundred() -> None:
    """GPU workshop: 20.6 GB each way through the leader of 100 GPUs, 41 GB together, fifty times a ring's load."""
    found = by_name(PCIE, 208e6, 100)

    assert pytest.approx(20.6e9, rel=0.001) == found["naive"]["sent_bytes"]
    assert pytest.approx(50) == found["naive"]["sent_bytes"] / found["ring"]["sent_bytes"]


# The cost of one message, with the documents' numbers.


FLAT = Network(Link("link", 5e-6, 25e9), Link("link", 5e-6, 25e9), 1024)


def by_name_message_costs(content: dict[str, Any], part: str, key: str) -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in content[part]}


def test_where_the_ring_overtakes_the_tree() -> None:
    """Guide, sections 3.5 and 5.3: of 4 ranks, 2·alpha more against 2.5·n·beta less, 100 kB; n* is alpha·B.

    Against two trees that share the tensor it is 2·alpha more for 0.5·n·beta less.
    """
    content = message_costs(FLAT, 208e6, 4, 0.0)

    assert [("tree", "ring", pytest.approx(100e3)), ("double-tree", "ring", pytest.approx(500e3))] == [
        (one["below"], one["above"], one["bytes"]) for one in content["crossovers"]
    ]
    assert [pytest.approx(125e3)] == [link["crossover_bytes"] for link in content["links"]]


@pytest.mark.parametrize(
    ("size", "gamma", "regime"),
    [(1e3, 0.0, "latency-bound"), (1e9, 0.0, "bandwidth-bound"), (1e9, 1e-9, "compute-bound")],
)
def test_the_longest_term_names_the_regime(size: float, gamma: float, regime: str) -> None:
    """Guide, sections 5.3 and 5.5: additions count where a CPU adds a byte in a nanosecond."""
    content = message_costs(FLAT, size, 8, gamma)

    assert regime == by_name_message_costs(content, "collectives", "kind")["all_reduce"]["regime"]
    assert "compute-bound" != by_name_message_costs(content, "collectives", "kind")["all_gather"]["regime"]


def test_each_collective_is_a_sum_of_its_terms() -> None:
    """All kinds that dptrace links measures; at its own n*, messages and bytes take as long."""
    for row in message_costs(FLAT, 1e6, 8, 1e-12)["collectives"]:
        assert pytest.approx(row["latency_s"] + row["transfer_s"] + row["adding_s"]) == row["seconds"]
        assert pytest.approx(row["latency_s"]) == row["transfer_s"] * row["crossover_bytes"] / 1e6


def test_a_hierarchy_uses_both_links() -> None:
    """Guide, section 3.6: 8 nodes of 8: trees over NVLink, and a ring of 14 messages over InfiniBand."""
    network = Network(Link("near", 3e-6, 450e9), Link("far", 2e-6, 25e9), 8)
    found = by_name_message_costs(message_costs(network, 1e9, 64, 0.0), "all_reduce", "algorithm")
    ring, levels = found["ring"], found["hierarchical"]

    assert (126, 20) == (ring["steps"], levels["steps"])
    assert pytest.approx(6 * 3e-6 + 14 * 2e-6) == levels["latency_s"]
    assert pytest.approx(6 * 1e9 / 450e9 + 2 * 7 / 8 * 1e9 / 25e9) == levels["transfer_s"]
    assert "hierarchical" not in by_name_message_costs(message_costs(network, 1e9, 8, 0.0), "all_reduce", "algorithm")


@pytest.mark.heavy
@pytest.mark.parametrize(("link", "gb_per_s"), [("3us:50GB/s", (50, 50)), ("nvlink4,3us:40", (360, 40))])
def test_a_typed_link_is_that_link(link: str, gb_per_s: tuple[float, float]) -> None:
    """A named link reaches a share of its bandwidth, a typed one all that was typed, and the answer says which."""
    content = predict(params=7e9, gpus=16, strategy="ddp", link=link)
    said = " ".join(content["assumptions"])

    assert pytest.approx(gb_per_s) == tuple(one["bytes_per_s"] / 1e9 for one in content["links"])
    assert ("nominal bandwidth" in said) is ("nvlink4" in link)


# The communication roofline, with the guide's numbers.


def test_the_guides_roofline() -> None:
    """Guide, sections 6.2 to 6.6: CCR 3,072 for a sample of GPT-3, ridge 2,199, and compute-bound with 32 samples.

    989 dense TFLOP/s over 450 GB/s in one direction give the guide's ridge, which is 1,979 over 900.
    """
    one_sample = ccr(6 * 175e9 * 2048, 2 * 175e9 * 2)
    found = level(Link("NVLink 4", 1e-6, 450e9), 989.4e12, 32 * one_sample, 32)

    assert 3072 == one_sample
    assert 2199 == round(found.ridge)
    assert ("compute-bound", 1.0) == (found.regime, found.efficiency)
    assert pytest.approx(0.716, abs=0.001) == found.critical_batch


@pytest.mark.parametrize(
    ("samples", "regime"), [(0.1, "far below the ridge"), (0.5, "communication-bound"), (0.72, "near the ridge")]
)
def test_regimes(samples: float, regime: str) -> None:
    """Guide, section 6.6: below a fifth of the ridge, below four fifths, around it."""
    link = Link("NVLink 4", 1e-6, 450e9)

    assert regime == level(link, 989.4e12, samples * 3072, samples).regime


@pytest.mark.parametrize(
    ("alpha_s", "bytes_per_s", "expected"),
    [(1e-6, 450e9, 450e3), (1.5e-6, 25e9, 37.5e3), (5e-6, 12.5e9, 62.5e3), (50e-6, 12.5e9, 625e3)],
)
def test_the_guides_crossovers(alpha_s: float, bytes_per_s: float, expected: float) -> None:
    """Guide, section 5.3, with HDR's 200 Gb/s = 25 GB/s: NVLink 4, InfiniBand HDR, RoCE, TCP."""
    assert pytest.approx(expected) == crossover_bytes(Link("", alpha_s, bytes_per_s))


def test_adding_is_cheap_on_a_gpu() -> None:
    """Guide, section 5.5: on an H100, adding 1 GB among 8 ranks takes 0.8 ms, and sending it over NVLink 3.9."""
    assert pytest.approx(0.78e-3, rel=0.01) == reduce_seconds(1e9, 8, 3.35e12)
