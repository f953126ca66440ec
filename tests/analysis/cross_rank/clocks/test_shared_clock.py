"""Which ranks share a clock, from run.json and traces."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import dptrace
from dptrace.analysis.cross_rank.clocks.shared_clock import shared_clock_devices, unify_shared_clocks
from dptrace.analysis.matching.offsets import Offset
from tests.support.paths import ROOT
from tests.support.rank_cases import rank, reduce

CALLS = [reduce(0, 1_000_000)]


@pytest.mark.parametrize(
    ("info", "shared"),
    [
        ({}, [0, 1, 2]),
        ({"ranks": "?"}, [0, 1, 2]),
        ({"ranks": [{"rank": 0}, {"rank": 1, "host": ""}, 7]}, [0, 1, 2]),
        ({"ranks": [{"rank": i, "host": "a", "node": 0} for i in range(3)]}, [0, 0, 2]),
        ({"ranks": [{"rank": 0, "host": "a", "node": 0}, {"rank": 1, "host": "a", "node": 1}]}, [0, 1, 2]),
    ],
)
def test_cpus_of_one_host_share_its_clock(info: dict[str, Any], shared: list[int]) -> None:
    """Rank 2 has a GPU's times; nothing is assumed without run.json."""
    assert shared == shared_clock_devices(
        [rank(0, CALLS, on_cpu=True), rank(1, CALLS, on_cpu=True), rank(2, CALLS)], info
    )


def test_traces_of_one_machine_share_its_clock_without_run_json(tmp_path: Path) -> None:
    """Recorded by torch, which writes the machine's name; lateness of some µs is then known."""
    for path in (ROOT / "traces" / "ddp_cpu_2ranks").glob("*.gz"):
        shutil.copy(path, tmp_path)
    run = dptrace.open(tmp_path, cache=False)
    clocks = run.cross_rank.clocks

    assert {} == run.metadata
    assert [0, 0] == clocks.reference.tolist() == clocks.offset_ns.tolist()
    assert 20_000 > clocks.uncertainty_ns.max()
    assert any("share one clock" in note for note in clocks.notes)


def test_what_shares_a_clock_is_compared_with_what_its_first_is_compared_with() -> None:
    """Also if the first device's reference is itself compared with another."""
    offsets = [Offset(float(i), 0.0, 0, float(i), i) for i in range(4)]
    reference = [0, 1, 1, 3]
    unify_shared_clocks(offsets, reference, [0, 0, 2, 2])

    assert [0, 0, 0, 0] == reference
    assert [0.0, 0.0, 2.0, 2.0] == [offset.ahead_ns for offset in offsets]
    assert offsets[3].uncertainty_ns > offsets[2].uncertainty_ns
