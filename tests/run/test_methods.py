"""The frames of a run's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from dptrace.errors import UsageError
from tests.support.memory_files import GOLDEN, memory_run
from tests.support.replay_files import write_job


def test_frames_agree_with_each_other() -> None:
    """Of a real recording: the highest total is the highest peak, and kinds share it."""
    run = dptrace.open(GOLDEN)
    curve, peaks, kinds = run.memory_over_time(), run.memory(), run.memory_usage()

    assert int(curve["allocated_bytes"].max()) == int(peaks["peak_bytes"].max()) == int(kinds["peak_bytes"].sum())
    assert int(run.memory_blocks()["bytes"].sum()) == int(
        kinds.loc[kinds["name"] != "before recording", "peak_bytes"].sum()
    )


@pytest.mark.parametrize(("by", "name"), [("operator", "aten::linear"), ("module", "layers.0")])
def test_memory_by_what_allocated_it(tmp_path: Path, by: str, name: str) -> None:
    """Each step's activation is under its operator and its label."""
    usage = dptrace.open(memory_run(tmp_path, ranks=1)).memory_usage(by)

    assert (96, 4) == tuple(usage.loc[usage["name"] == name, ["allocated_bytes", "allocations"]].iloc[0])


def test_an_unknown_grouping_is_refused() -> None:
    """The message lists those that are known."""
    with pytest.raises(UsageError, match="kind, operator, module"):
        dptrace.open(GOLDEN).memory_usage("color")


# The frame of what a run's steps compute.


# The methods of a run that replay it.


def test_the_graph_is_built_once(tmp_path: Path) -> None:
    """Several what-ifs of a run share its graph, and agree with the function."""
    run = dptrace.open(write_job(tmp_path), cache=False)

    assert run.whatif(compute=2).predicted_step_ns == dptrace.whatif(run, compute=2).predicted_step_ns
    assert run.replay is run.replay
