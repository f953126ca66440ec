"""``dptrace whatif`` on the command line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from dptrace.commands.whatif import parsed, swept
from dptrace.load.open import open_run
from dptrace.load.options import ReadOptions
from dptrace.replay.graph.events import RANK_EVENTS
from tests.support.real_traces import needs_real_traces, real
from tests.support.replay_files import write_job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("whatif_job"))


def whatif(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["whatif", "--no-cache", *map(str, arguments)])


@pytest.mark.heavy
def test_the_step_is_predicted(job: Path) -> None:
    """As text, JSON, and CSV with a row for each of nine figures of two ranks."""
    for arguments, fact in (
        ("--compute 2x", "With compute 2×: 0.47 ms a step instead of 0.80 ms"),
        # Several options, in any order, are one change.
        (
            "--bandwidth 2 --compute 2x --straggler 1=10us --kernel optimizer=2x --json",
            f'"predicted_step_ns": {475_000 - 50_000 + 10_000 + 25_000},',
        ),
        # Without a change, the run is replayed as it was.
        ("--json", '"measured_step_ns": 800000,\n "replayed_step_ns": 800000,\n "predicted_step_ns": 800000,'),
        ("--compute 2x --csv", "\n1,0,wall_ns,800000,800000,475000\n"),
    ):
        result = whatif(job, *arguments.split())

        assert 0 == result.exit_code, result.output
        assert fact in result.stdout, (arguments, fact)
        assert ("dptrace critical-path" in result.stderr) == (arguments == "--compute 2x"), (arguments, fact)
        if "--csv" in arguments:
            assert 1 + 2 * 9 == result.stdout.count("\n"), (arguments, fact)


@pytest.mark.slow
@needs_real_traces
def test_what_late_ranks_gain_beyond_their_findings_is_said() -> None:
    """8 H100s: nearly all that is gained without late ranks is part of what all hosts do, which another finding has."""
    answer = json.loads(whatif(real("sharded_h100_8ranks"), "--no-straggler", "--json").stdout)
    note = answer["notes"][-1]

    assert "6.37 ms" in note
    assert "launches kernels late" in note
    assert 6_370_000 == pytest.approx(answer["step_gain_ns"], abs=5000)


@pytest.mark.heavy
def test_of_one_late_rank_nothing_is_left(job: Path) -> None:
    """Its finding has all that is gained."""
    answer = json.loads(whatif(job, "--no-straggler", "--json").stdout)

    assert not any("late ranks" in note for note in answer["notes"])


@pytest.mark.heavy
def test_the_predicted_run_is_written(job: Path, tmp_path: Path) -> None:
    """-o FILE.json.gz writes a trace of the predicted run, whose collectives are shorter."""
    path = tmp_path / "predicted.json.gz"

    result = whatif(job, "--bandwidth", "2x", "-o", path, "-q")

    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert 0 == result.exit_code, result.output
    assert {50} == {round(e["dur"]) for e in events if "AllReduce" in e.get("name", "") and e.get("dur", 0) < 120}


# What is different, as it was typed.


@pytest.mark.heavy
def test_the_page_says_which_step_each_figure_is_of(job: Path, tmp_path: Path) -> None:
    """The answer is of the median step, the figures of the mean one."""
    path = tmp_path / "predicted.html"
    done = whatif(job, "--compute", "2x", "-o", path)

    assert 0 == done.exit_code, done.output
    assert "of the median step, the figures above the chart are of the mean step" in path.read_text(encoding="utf-8")


def test_what_was_typed_is_read() -> None:
    """One option may have several values, which are compared; a bandwidth is a factor, or stays text as a rate."""
    assert ("bucket_cap_mb", [1.0, 4.5]) == swept({"bucket_cap_mb": "1,4.5", "world_size": "8"})
    assert swept({"bucket_cap_mb": "1", "world_size": "8"}) is None
    assert {"world_size": 8, "bandwidth": 2.0} == parsed({"world_size": "8", "bandwidth": "2x"})
    assert "25GBps" == parsed({"bandwidth": "25GBps"})["bandwidth"]


@pytest.mark.heavy
def test_a_machine_that_is_too_small_is_named_before_the_replay(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much memory it takes, how much is free, and what to do; nothing where it suffices."""
    assert "memory" not in whatif(job).stderr
    monkeypatch.setattr("dptrace.load.open.available_memory", lambda: 1000)

    assert "are free" in whatif(job).stderr


@pytest.mark.heavy
def test_what_is_replayed_is_read_with_the_figures(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is parsed once, also by a later replay of figures that are in the cache; no answer changes."""
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path))
    uncached = whatif(job, "--json", "--no-cache").stdout
    assert [uncached] * 2 == [whatif(job, "--json").stdout for _ in range(2)]

    def refuse(*_: object) -> None:
        raise AssertionError("a file was parsed a second time")

    run = open_run([str(job)], ReadOptions(prefetch=(RANK_EVENTS,)))
    unread = msgspec.structs.replace(RANK_EVENTS, read=refuse)
    assert all(run.read_again(timeline, unread) for timeline in run.timelines)
