"""What a user says of a step's work, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from tests.support.kineto_files import KinetoFile, training_step


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One rank of two steps."""
    training_step(training_step(KinetoFile(rank=0, world_size=1), 4, 0), 5, 100).write(tmp_path / "r0.json.gz")
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(cli, ["analyze", *map(str, arguments)])


def test_parameters_tokens_and_peak_give_the_utilization(folder: Path) -> None:
    """6 · 2,000 · 1,000 FLOPs in each step; in JSON by step, in the terminal as a sentence."""
    options = ("--params", "2K", "--tokens", "1e3", "--samples", "4", "--peak-tflops", "0.5")

    found = json.loads(run(folder, *options, "--json").stdout)["utilization"]

    wall = [step["wall_ns"] for step in found["steps"]]
    assert pytest.approx([12e6 / ns / 1e3 for ns in wall]) == [step["tflops"] for step in found["steps"]]
    assert pytest.approx(12e6 * 2 / sum(wall) / 1e3 / 0.5) == found["mfu"]
    assert pytest.approx(4 * 2e9 / sum(wall)) == found["samples_per_s"]
    assert "MFU" in run(folder, *options).stdout


def test_without_them_nothing_is_said(folder: Path) -> None:
    """Foreign traces do not tell what a step computes."""
    assert "utilization" not in json.loads(run(folder, "--json").stdout)
    assert "TFLOP/s" not in run(folder).stdout


@pytest.mark.parametrize("value", ["many", "-1", "0", "7X", "1e99", ""])
def test_a_number_that_is_none_is_refused(folder: Path, value: str) -> None:
    """With exit code 2, and the value."""
    result = run(folder, f"--params={value}")

    assert 2 == result.exit_code
    assert repr(value) in result.stderr
