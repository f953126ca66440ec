"""``dptrace critical-path`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from tests.support.replay_files import write_job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("path_job"))


def critical_path(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["critical-path", "--no-cache", *map(str, arguments)])


def test_it_prints_what_the_path_is(job: Path) -> None:
    """The sentence has the length and the largest kind, the tables kernels and the gain of a tenth less."""
    result = critical_path(job, "--step", "1")

    assert 0 == result.exit_code, result.output
    assert "Step 1 takes 800 µs across ranks; 81 % of its critical path is compute" in result.output
    assert "backward" in result.output


def test_json_has_the_chain(job: Path) -> None:
    """The pieces of the chain and their sum by kind."""
    answer = json.loads(critical_path(job, "--json").stdout)

    assert 800_000 == answer["length_ns"] == sum(answer["by_kind"].values())
    assert {"compute", "transfer"} <= {piece["kind"] for piece in answer["path"]}


def test_csv_has_the_slack_of_each_kernel(job: Path, tmp_path: Path) -> None:
    """A row for each kernel of the step."""
    path = tmp_path / "slack.csv"

    result = critical_path(job, "--step", "2", "--csv", "-o", path)

    assert 0 == result.exit_code, result.output
    assert 1 + 2 * 4 == len(path.read_text().splitlines())


@pytest.mark.parametrize("arguments", [["--step", "77"], ["--json", "--csv"], ["-o", "path.json"]])
def test_wrong_use_is_refused(job: Path, arguments: list[str]) -> None:
    """A step that is not there, two formats at once, and a file of another kind: exit code 2."""
    assert 2 == critical_path(job, *arguments).exit_code
