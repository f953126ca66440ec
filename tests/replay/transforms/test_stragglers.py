"""Runs without what ranks do longer than the others."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from dptrace.replay.transforms.stragglers import NoStraggler
from tests.support.replay_files import job_rank


def job_with(folder: Path, forward: int) -> dptrace.Run:
    """Write three ranks, of which the last has another forward than the others' 300 µs."""
    for rank, own in enumerate((300, 300, forward)):
        file = job_rank(rank, own, 20 + forward + 203, 1, world_size=3)
        for args in (event["args"] for event in file.events):
            args.update({"Group size": 3, "Process Group Ranks": "[0, 1, 2]"} if "Group size" in args else {})
        file.write(folder / f"rank{rank}.json")
    return dptrace.open(folder, cache=False)


def test_a_slow_device_is_brought_to_half_of_the_others(tmp_path: Path) -> None:
    """A forward that takes 5 ms longer than the others' costs the run 5 ms."""
    run = job_with(tmp_path, forward=5300)

    assert 5_000_000 == pytest.approx(run.whatif(no_straggler=True).run_gain_ns, rel=0.01)


def test_level_ranks_stay_as_they_are(tmp_path: Path) -> None:
    """Ranks within 50 µs of each other have no straggler."""
    run = job_with(tmp_path, forward=345)

    assert 0 == run.whatif(no_straggler=True).run_gain_ns


def test_one_rank_has_no_straggler(tmp_path: Path) -> None:
    """The change compares ranks; with one it says that others are needed."""
    run = dptrace.open(job_rank(0, 300, 623).write(tmp_path / "rank0.json"), cache=False)

    with pytest.raises(dptrace.DptraceError, match="other ranks"):
        NoStraggler().apply(run.replay.model)
