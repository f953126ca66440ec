"""``dptrace whatif`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from dptrace.commands.whatif import parsed, swept
from dptrace.errors import UsageError
from tests.support.replay_files import write_job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("whatif_job"))


def whatif(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["whatif", "--no-cache", *map(str, arguments)])


def test_it_prints_the_step_before_and_after(job: Path) -> None:
    """The sentence has the predicted and the measured step, the tables the parts and both ranks."""
    result = whatif(job, "--compute", "2x")

    assert 0 == result.exit_code, result.output
    assert "With compute 2×: 0.47 ms a step instead of 0.80 ms" in result.output
    assert "exposed comm" in result.output
    assert "dptrace critical-path" in result.stderr


def test_changes_apply_together(job: Path) -> None:
    """Several options, in any order, are one change."""
    arguments = ("--bandwidth", "2", "--compute", "2x", "--straggler", "1=10us", "--kernel", "optimizer=2x")
    answer = json.loads(whatif(job, *arguments, "--json").stdout)

    assert 475_000 - 50_000 + 10_000 + 25_000 == answer["predicted_step_ns"]
    assert 4 == len(answer["changes"])


def test_without_a_change_the_run_is_replayed(job: Path) -> None:
    """The answer is the step as it was, with the error of its replay."""
    answer = json.loads(whatif(job, "--json").stdout)

    assert [] == answer["changes"]
    assert 800_000 == answer["measured_step_ns"] == answer["replayed_step_ns"] == answer["predicted_step_ns"]


def test_csv_has_a_row_for_each_rank_and_figure(job: Path) -> None:
    """Nine figures of two ranks, as recorded and as predicted."""
    lines = whatif(job, "--compute", "2x", "--csv").stdout.splitlines()

    assert 1 + 2 * 9 == len(lines)
    assert "1,0,wall_ns,800000,800000,475000" in lines


def test_the_predicted_run_is_written(job: Path, tmp_path: Path) -> None:
    """--export writes a trace of the predicted run, whose collectives are shorter."""
    path = tmp_path / "predicted.json"

    result = whatif(job, "--bandwidth", "2x", "--export", path, "-q")

    events = json.loads(path.read_text())["traceEvents"]
    assert 0 == result.exit_code, result.output
    assert {50} == {round(e["dur"]) for e in events if "AllReduce" in e.get("name", "") and e.get("dur", 0) < 120}


# What is different, as it was typed.


def test_one_option_may_have_several_values() -> None:
    """These are compared; one value is no sweep."""
    assert ("bucket_cap_mb", [1.0, 4.5]) == swept({"bucket_cap_mb": "1,4.5", "world_size": "8"})
    assert swept({"bucket_cap_mb": "1", "world_size": "8"}) is None
    assert 8 == parsed({"world_size": "8"})["world_size"]


@pytest.mark.parametrize(
    "typed", [{"bucket_cap_mb": "1,x"}, {"world_size": "1.5,2"}, {"bucket_cap_mb": "1,2", "world_size": "2,4"}]
)
def test_what_can_not_be_swept_is_refused(typed: dict[str, Any]) -> None:
    """No numbers, half a rank, and two sweeps at once."""
    with pytest.raises(UsageError):
        swept(typed)


def test_bandwidth_is_a_factor_or_a_rate() -> None:
    """2x is a number, 25GBps stays text for the model to parse."""
    assert [2.0, "25GBps"] == [parsed({"bandwidth": text})["bandwidth"] for text in ("2x", "25GBps")]
