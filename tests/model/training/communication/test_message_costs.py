"""The cost of one message, with the documents' numbers."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.model.training.communication.all_reduce import all_reduces
from dptrace.model.training.communication.message_costs import message_costs
from dptrace.model.training.communication.network import Link, Network

FLAT = Network(Link("link", 5e-6, 25e9), Link("link", 5e-6, 25e9), 1024)


def by_name(content: dict[str, Any], part: str, key: str) -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in content[part]}


def test_the_workshops_comparison() -> None:
    """GPU workshop: of 208 MB on 4 GPUs, naive loads its root with 1,248 MB, a ring each rank with 312 + 312."""
    found = by_name(message_costs(FLAT, 208e6, 4, 0.0), "all_reduce", "algorithm")

    assert {"ring": 624e6, "naive": 1248e6} == {name: found[name]["busiest_bytes"] for name in ("ring", "naive")}
    assert 312e6 == found["ring"]["sent_bytes"] == found["ring"]["received_bytes"]
    assert {1248e6} == {one["total_bytes"] for one in found.values()}
    assert pytest.approx(312e6 / 25e9 + 6 * 5e-6) == found["ring"]["seconds"]


def test_where_the_ring_overtakes_the_tree() -> None:
    """Guide, sections 3.5 and 5.3: of 4 ranks, 2·alpha more against 2.5·n·beta less, 100 kB; n* is alpha·B."""
    content = message_costs(FLAT, 208e6, 4, 0.0)

    assert [("tree", "ring", pytest.approx(100e3))] == [
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

    assert regime == by_name(content, "collectives", "kind")["all_reduce"]["regime"]
    assert "compute-bound" != by_name(content, "collectives", "kind")["all_gather"]["regime"]


def test_each_collective_is_a_sum_of_its_terms() -> None:
    """All kinds that dptrace links measures; at its own n*, messages and bytes take as long."""
    for row in message_costs(FLAT, 1e6, 8, 1e-12)["collectives"]:
        assert pytest.approx(row["latency_s"] + row["transfer_s"] + row["adding_s"]) == row["seconds"]
        assert pytest.approx(row["latency_s"]) == row["transfer_s"] * row["crossover_bytes"] / 1e6


def test_a_hierarchy_uses_both_links() -> None:
    """Guide, section 3.6: 8 nodes of 8: trees over NVLink, and a ring of 14 messages over InfiniBand."""
    network = Network(Link("near", 3e-6, 450e9), Link("far", 2e-6, 25e9), 8)
    found = by_name(message_costs(network, 1e9, 64, 0.0), "all_reduce", "algorithm")
    ring, levels = found["ring"], found["hierarchical"]

    assert (126, 20) == (ring["steps"], levels["steps"])
    assert pytest.approx(6 * 3e-6 + 14 * 2e-6) == levels["latency_s"]
    assert pytest.approx(6 * 1e9 / 450e9 + 2 * 7 / 8 * 1e9 / 25e9) == levels["transfer_s"]
    assert "hierarchical" not in by_name(message_costs(network, 1e9, 8, 0.0), "all_reduce", "algorithm")


def test_the_sharded_hierarchy_is_that_of_a_plan() -> None:
    """Each rank sends its eighth between nodes; all ranks together send 2(P-1) tensors, as with any algorithm."""
    network = Network(Link("near", 3e-6, 450e9), Link("far", 2e-6, 25e9), 8)
    found = by_name(message_costs(network, 1e9, 64, 0.0), "all_reduce", "algorithm")["hierarchical-sharded"]
    (plan,) = [one for one in all_reduces(network, 1e9, 64) if one.algorithm == "hierarchical-sharded"]

    assert (plan.steps, pytest.approx(plan.seconds)) == (found["steps"], found["seconds"])
    assert pytest.approx(found["total_bytes"]) == 64 * found["sent_bytes"] == 64 * plan.sent_bytes
