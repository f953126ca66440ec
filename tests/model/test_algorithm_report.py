"""Timed algorithms beside their predictions."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.model.algorithm_report import algorithm_report
from dptrace.model.link_report import link_report
from tests.support.links_samples import ALPHA_S, BETA_S, GAMMA_S, measured, with_algorithms

LINK = {"alpha_s": ALPHA_S, "beta_s_per_byte": BETA_S}


def report(**changes: Any) -> dict[str, Any]:
    rows = {"ring": [{"bytes": 1000, "median_s": 1.0}], "hierarchical": [{"bytes": 1000, "median_s": 1.0}]}
    arguments: dict[str, Any] = {"ranks_per_node": 2, "link": LINK, "gamma_s_per_byte": None, "nodes": 1}
    return algorithm_report(rows, 4, **(arguments | changes))


def test_times_by_the_formulas_are_predicted() -> None:
    """Of times made from alpha, beta and gamma: all three come back, and no algorithm is off by more than the fit."""
    found = link_report(with_algorithms(measured(kinds=("all_reduce", "send_recv"))))["algorithms"]

    assert pytest.approx(GAMMA_S, rel=0.05) == found["gamma_s_per_byte"]
    assert pytest.approx(ALPHA_S, rel=0.05) == found["alpha_s"]
    assert {"ring", "tree", "halving-doubling", "hierarchical", "naive"} == set(found["all_reduce"])
    assert all(one["deviation"] < 0.05 for one in found["all_reduce"].values())
    assert 17 == len(found["addition"])


def test_where_one_overtakes_another() -> None:
    """By prediction, the ring overtakes the tree: of 4 ranks, 2·alpha more against 2.5·n·beta less."""
    found = link_report(with_algorithms(measured(kinds=("all_reduce", "send_recv"))))["algorithms"]["crossovers"]
    (ring,) = [one for one in found if (one["above"], one["below"]) == ("ring", "tree")]

    assert pytest.approx(2 * ALPHA_S / (2.5 * BETA_S + 1.25 * GAMMA_S), rel=0.1) == ring["bytes"]


def test_without_a_line_nothing_is_predicted() -> None:
    """Times stay, without predictions and crossovers."""
    found = report(link=None)

    assert [] == found["crossovers"]
    assert {None} == {row["predicted_s"] for one in found["all_reduce"].values() for row in one["measured"]}
    assert None is found["all_reduce"]["ring"]["deviation"]


def test_a_hierarchy_over_two_links_is_not_predicted_from_one() -> None:
    """On several machines, the message crosses machines; the ring is predicted from it."""
    found = report(nodes=2)["all_reduce"]

    assert None is found["hierarchical"]["measured"][0]["predicted_s"]
    assert found["ring"]["measured"][0]["predicted_s"] > 0
