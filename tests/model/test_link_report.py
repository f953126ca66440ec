"""links.json from measured times."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dptrace.model.collectives import KINDS, bus_factor
from dptrace.model.link_report import algorithm_report, link_report
from tests.support.links_samples import ALPHA_S, BETA_S, GAMMA_S, measured, with_algorithms


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_one_links_alpha_and_beta_come_back_from_every_collective(backend: str, ranks: int) -> None:
    """Times generated from the formulas yield the original alpha and beta."""
    found = link_report(measured(ranks, backend))["collectives"]

    assert list(KINDS) == list(found)
    for one in found.values():
        assert one["link"]["alpha_s"] == pytest.approx(ALPHA_S, rel=0.05)
        assert one["link"]["beta_s_per_byte"] == pytest.approx(BETA_S, rel=0.05)
        assert one["link"]["bandwidth_gbps"] == pytest.approx(4, rel=0.05)
        assert one["fit"]["r2_above"] > 0.99
        assert one["link"]["assumed"] == (backend == "nccl")


@pytest.mark.heavy
def test_bandwidths_are_those_of_nccl_tests() -> None:
    """algbw is bytes / median, busbw is algbw × factor; the best is reported by kind and for all-reduce.

    All is JSON without NaN and without single repetitions; each row has its spread.
    """
    content = link_report(measured())
    one = content["collectives"]["all_reduce"]
    row = one["measured"][-1]

    assert row["algbw_gbps"] == pytest.approx(row["bytes"] / row["median_s"] / 1e9)
    assert row["busbw_gbps"] == pytest.approx(row["algbw_gbps"] * bus_factor("all_reduce", 4))
    assert one["busbw_gbps"] == max(r["busbw_gbps"] for r in one["measured"])
    assert content["busbw_gbps"] == content["busbw_gbps_by_kind"]["all_reduce"] == one["busbw_gbps"]
    assert list(KINDS) == list(content["busbw_gbps_by_kind"])
    assert content == json.loads(json.dumps(content, allow_nan=False))
    assert (1, "links", 4, "gloo") == tuple(content[key] for key in ("schema", "kind", "ranks", "backend"))
    assert "samples" not in content
    for row in content["collectives"]["broadcast"]["measured"]:
        assert row["least_s"] <= row["quarter_s"] <= row["median_s"] <= row["three_quarters_s"]


def test_too_few_sizes_leave_the_measurement_without_a_fit() -> None:
    """The times are reported, and the reason for the missing line."""
    raw = measured(kinds=("send_recv",))
    content = link_report(raw | {"samples": raw["samples"][:1]})
    one = content["collectives"]["send_recv"]

    assert (None, None, None) == (one["fit"], one["link"], content["nearest"])
    assert 1 == len(one["measured"])
    (note,) = content["notes"]
    assert "send_recv: no line" in note


@pytest.mark.slow
def test_a_known_interconnect_is_named_only_where_it_can_be() -> None:
    """No NVLink for gloo, no network between GPUs of one machine; a network between machines."""
    near = [
        link_report(measured(backend=backend, nodes=nodes))["nearest"]
        for backend, nodes in (("gloo", 1), ("nccl", 1), ("nccl", 2))
    ]

    assert [True, False, False] == [
        one["medium"] in ("network", "memory") and "no network" in one["remark"] for one in near
    ]
    assert near[1]["medium"] in ("nvlink", "pcie")
    assert ("network", "") == (near[2]["medium"], near[2]["remark"])
    assert near[2]["bandwidth_ratio"] == pytest.approx(4e9 / near[2]["bytes_per_s"], rel=0.05)


def test_what_a_line_does_not_explain_is_said() -> None:
    """A change of slope is reported with its size; random scatter with advice."""
    raw = measured(kinds=("all_reduce",))
    for sample in raw["samples"]:
        if sample["bytes"] >= 2**22:
            sample["seconds"] = [3 * value for value in sample["seconds"]]
    (note,) = link_report(raw)["notes"]

    assert "all_reduce from 4,194,304 bytes" in note
    for k, sample in enumerate(raw["samples"]):
        sample["seconds"] = [
            value * (0.5 if k % 2 else 2) for value in measured(kinds=("all_reduce",))["samples"][k]["seconds"]
        ]
    (note,) = link_report(raw)["notes"]
    assert "Measure again" in note


# Timed algorithms beside their predictions.


LINK = {"alpha_s": ALPHA_S, "beta_s_per_byte": BETA_S}


def report(**changes: Any) -> dict[str, Any]:
    rows = {"ring": [{"bytes": 1000, "median_s": 1.0}], "hierarchical": [{"bytes": 1000, "median_s": 1.0}]}
    arguments: dict[str, Any] = {"ranks_per_node": 2, "link": LINK, "gamma_s_per_byte": None, "nodes": 1}
    return algorithm_report(rows, 4, **(arguments | changes))


@pytest.mark.heavy
def test_times_by_the_formulas_are_predicted() -> None:
    """Of times made from alpha, beta and gamma: all three come back, and no algorithm is off by more than the fit.

    The ring overtakes the tree: of 4 ranks, 2·alpha more against 2.5·n·beta less.
    """
    found = link_report(with_algorithms(measured(kinds=("all_reduce", "send_recv"))))["algorithms"]
    (ring,) = [one for one in found["crossovers"] if (one["above"], one["below"]) == ("ring", "tree")]

    assert pytest.approx(GAMMA_S, rel=0.05) == found["gamma_s_per_byte"]
    assert pytest.approx(ALPHA_S, rel=0.05) == found["alpha_s"]
    assert {"ring", "tree", "halving-doubling", "hierarchical", "naive"} == set(found["all_reduce"])
    assert all(one["deviation"] < 0.05 for one in found["all_reduce"].values())
    assert 17 == len(found["addition"])
    assert pytest.approx(2 * ALPHA_S / (2.5 * BETA_S + 1.25 * GAMMA_S), rel=0.1) == ring["bytes"]


def test_what_one_line_cannot_tell_is_not_predicted() -> None:
    """Without a line, nothing; on several machines, a hierarchy over two links, where the ring is."""
    without = report(link=None)
    assert [] == without["crossovers"]
    assert {None} == {row["predicted_s"] for one in without["all_reduce"].values() for row in one["measured"]}
    assert None is without["all_reduce"]["ring"]["deviation"]

    found = report(nodes=2)["all_reduce"]
    assert None is found["hierarchical"]["measured"][0]["predicted_s"]
    assert found["ring"]["measured"][0]["predicted_s"] > 0
