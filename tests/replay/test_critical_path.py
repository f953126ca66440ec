"""Critical paths of steps."""

from __future__ import annotations

import json

import pytest

import dptrace
from tests.support.paths import ROOT
from tests.support.real_traces import needs_real_traces, real


def test_the_path_is_that_of_the_slower_rank(run: dptrace.Run) -> None:
    """From step to step: rank 1's forward and backward, the transfer, and a kernel and the host after it."""
    path = run.critical_path("ProfilerStep#1")

    assert 800_000 == path.length_ns
    assert 800_000 == sum(path.by_kind.values()) == sum(path.by_rank.values())
    assert 400_000 + 200_000 + 50_000 == path.by_kind["compute"]
    assert 100_000 == path.by_kind["transfer"] == path.by_rank[None]
    assert ["forward", "backward", "all_reduce", "optimizer"] == [item.name for item in path.items[:4]]


def test_a_tenth_less_gains_what_a_replay_says(run: dptrace.Run) -> None:
    """A forward of 400 µs on the slower rank, less 10 %, makes each step 40 µs shorter."""
    items = {item.name: item.gain_ns for item in run.critical_path().items}

    assert 40_000 == items["forward"]
    assert 10_000 == items["all_reduce"]


def test_the_slack_of_the_faster_rank_is_its_wait(run: dptrace.Run) -> None:
    """Rank 0's forward could take 100 µs longer; on rank 1, nothing could."""
    kernels = run.critical_path("ProfilerStep#2").kernels()

    forward = kernels[kernels["name"] == "forward"].set_index("rank")
    assert {0: 100_000, 1: 0} == forward["slack_ns"].to_dict()
    assert {0: False, 1: True} == forward["on_path"].to_dict()


def test_the_pieces_have_no_gap(run: dptrace.Run) -> None:
    """Each piece begins where the one before it ends, from the step before to the end of the step."""
    path = json.loads(json.dumps(run.critical_path("ProfilerStep#3").to_dict()))

    pieces = path["path"]
    assert [path["start_ns"], *(piece["end_ns"] for piece in pieces)] == [
        *(piece["start_ns"] for piece in pieces),
        path["end_ns"],
    ]


def test_an_unknown_step_is_refused(run: dptrace.Run) -> None:
    """The message lists the steps of the run."""
    with pytest.raises(dptrace.UsageError, match="ProfilerStep#3"):
        run.critical_path("ProfilerStep#9")


@pytest.mark.parametrize("name", ["naive_cpu_2ranks", "ddp_cpu_2ranks", "single_cpu"])
def test_recorded_paths_cover_their_step(name: str) -> None:
    """In recordings on CPUs, the kinds add up to the length, and what is on the path has no slack."""
    path = dptrace.open(ROOT / "traces" / name).critical_path()
    kernels = path.kernels()

    assert path.length_ns == sum(path.by_kind.values())
    assert 0 == kernels[kernels["on_path"]]["slack_ns"].min()


@needs_real_traces
def test_a_sleeping_host_is_the_path() -> None:
    """The straggler's host, asleep for a second before its all-to-all, is nearly the whole path of a step."""
    path = dptrace.open(real("straggler_v100_4ranks")).critical_path()

    assert path.by_kind["host"] > 0.9 * path.length_ns
    assert path.by_rank[2] > 0.9 * path.length_ns
