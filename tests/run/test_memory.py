"""The memory of a run: rows of peaks, uses, blocks and calls, the same as JSON and as frames."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from dptrace import Run
from dptrace.errors import UsageError
from dptrace.run.memory import NO_MEMORY, device_reports, memory_notes
from tests.support.kineto_files import KinetoFile
from tests.support.memory_files import GOLDEN, memory_run, training_file
from tests.support.replay_files import write_job


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of two ranks with a GPU each."""
    return dptrace.open(memory_run(tmp_path))


def test_each_rank_has_its_peak_and_what_was_alive_then(run: Run) -> None:
    """The step's gradients, its activation and the optimizer state, on top of what was there before."""
    [first, second] = run.to_dict(memory=True)["memory"]

    assert (0, 1) == (first["rank"], second["rank"])
    assert (1340, 4096, "ProfilerStep#1", "backward") == tuple(
        first["peak"][key] for key in ("bytes", "reserved_bytes", "step", "phase")
    )
    assert (1000, False, 16, 0) == tuple(
        first[key] for key in ("baseline_bytes", "counts_from_recording", "events", "out_of_memory")
    )
    assert {"before recording": 1000, "optimizer state": 200, "gradients": 100, "activations": 40} == {
        kind["name"]: kind["peak_bytes"] for kind in first["kinds"] if kind["peak_bytes"]
    }
    assert [(200, "optimizer state"), (100, "gradients"), (40, "activations")] == [
        (block["bytes"], block["kind"]) for block in first["blocks"]
    ]
    assert [("cudaMalloc", 1, 1)] == [(c["name"], c["count"], c["in_steps"]) for c in first["allocator_calls"]]
    assert 4096 - 1000 == first["unallocated_bytes"]


def test_a_selection_has_its_own_peak(run: Run) -> None:
    """Of rank 1 and step 0 only; the blocks that were alive at that peak have their origin."""
    part = run.select(ranks=[1], steps=(0, 0))
    [report] = device_reports(part)

    assert (1, 1300, "ProfilerStep#0") == (report.rank, report.peak.bytes, report.step_name(report.peak.step))
    assert {"ProfilerStep#0"} == set(part.memory()["step"])
    assert 1 == int(part.allocator_calls()["in_steps"].sum())
    assert run.select(steps=(1, 1)).allocator_calls().empty


def test_a_run_without_memory_events_says_how_to_record_them(tmp_path: Path) -> None:
    """Tables are empty then, and a note says so."""
    KinetoFile().op("aten::add", 10, 20).label("ProfilerStep#0", 5, 30).write(tmp_path / "a.json")
    run = dptrace.open(tmp_path / "a.json")

    assert [NO_MEMORY] == memory_notes(run)
    assert [] == run.to_dict(memory=True)["memory"]


def test_what_limits_the_figures_is_noted(tmp_path: Path) -> None:
    """Events that are missing from the file, and events that could not be read."""
    file = training_file()
    file.memory(60, 8, 9, allocated=5000, device=0).memory(61, 8, 9, allocated=5000, device=0)
    file.events[-1]["args"]["Bytes"] = "many"
    notes = memory_notes(dptrace.open(file.write(tmp_path / "a.json")))

    assert 2 == len(notes)
    assert "1 memory event left out" in notes[0]
    assert "GPU 0" in notes[1]


def test_a_file_that_has_gone_is_noted(tmp_path: Path) -> None:
    """Memory is read from the files after the figures."""
    run = dptrace.open(memory_run(tmp_path), cache=False)
    (tmp_path / "rank1.json").unlink()

    assert ["Rank 1: its file can't be read again, so its memory is unknown."] == memory_notes(run)


# The frames of memory, and the graph that replays share.


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


# The methods of a run that replay it.


def test_the_graph_is_built_once(tmp_path: Path) -> None:
    """Several what-ifs of a run share its graph, and agree with the function."""
    run = dptrace.open(write_job(tmp_path), cache=False)

    assert run.whatif(compute=2).predicted_step_ns == dptrace.whatif(run, compute=2).predicted_step_ns
    assert run.replay is run.replay
