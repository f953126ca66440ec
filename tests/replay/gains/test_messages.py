"""Counterfactuals of findings on messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dptrace
from dptrace.analysis.findings.finding import Finding
from dptrace.replay.gains.measure import Measurer
from dptrace.replay.gains.messages import faster_links, fewer_messages, usual_transfers
from dptrace.replay.simulation.changes import Change
from tests.support.replay_files import job_rank

ARRIVAL = 20 + 400 + 1 + 200 + 2


def evidence(**more: Any) -> dict[str, Any]:
    return {"collective": "all_reduce", "group": "0", **more}


def gain_of(run: dptrace.Run, change: Change | str) -> int | None:
    assert not isinstance(change, str), change
    return Measurer(run.replay).measure(change).gain.ns


def test_links_as_fast_as_others_halve_large_messages(tmp_path: Path) -> None:
    """Of 40 MB in 100 µs at 400 GB/s, 800 GB/s would save 50 µs a step."""
    for rank, forward in enumerate((300, 400)):
        file = job_rank(rank, forward, ARRIVAL)
        for event in file.events:
            args = event.get("args", {})
            args.update(dict.fromkeys(set(args) & {"In msg nelems", "Out msg nelems"}, 10_000_000))
        file.write(tmp_path / f"rank{rank}.json")
    run = dptrace.open(tmp_path, cache=False)
    finding = Finding("low_bandwidth", "", "", 1, 0.1, evidence(reference_gbps=800.0))

    assert 50_000 == pytest.approx(gain_of(run, faster_links(finding, run.replay.model)), abs=10)


def test_combined_messages_pay_the_latency_once(run: dptrace.Run) -> None:
    """Two messages of 4 KB a step, of which one of 8 KB would do, save half of a latency of 60 µs."""
    finding = Finding(
        "small_messages", "", "", 1, 0.1, evidence(bytes=8192, crossover_bytes=10_000, count=2, alpha_ns=60_000.0)
    )

    assert 30_000 == gain_of(run, fewer_messages(finding, run.replay.model))


def test_a_collective_that_took_far_longer_takes_the_median(tmp_path: Path) -> None:
    """One of six all-reduces takes 400 µs longer than the others: that is what the run gains, over six steps."""
    for rank, forward in enumerate((300, 400)):
        file, number, since = job_rank(rank, forward, ARRIVAL, steps=6), 0, float("inf")
        for event in file.events:
            if event.get("ts", 0) > since:
                event["ts"] += 400
            if "AllReduce" in event.get("name", ""):
                if number == 2:
                    since, event["dur"] = event["ts"], event["dur"] + 400
                number += 1
            if event.get("name") == "cudaDeviceSynchronize" and number == 3 and event["ts"] < since:
                event["dur"] += 400
        file.write(tmp_path / f"rank{rank}.json")
    run = dptrace.open(tmp_path, cache=False)

    assert any(latency.slow.any() for latency in run.cross_rank.latencies)
    assert 400_000 / 6 == pytest.approx(
        gain_of(run, usual_transfers(Finding("", "", "", 1, 1), run.replay.model)), rel=0.02
    )


def test_messages_that_the_run_does_not_have_are_no_change(run: dptrace.Run) -> None:
    """Small messages are not compared with links, and none is slow."""
    finding = Finding("low_bandwidth", "", "", 1, 0.1, evidence(reference_gbps=800.0))

    assert isinstance(faster_links(finding, run.replay.model), str)
    assert isinstance(usual_transfers(finding, run.replay.model), str)
