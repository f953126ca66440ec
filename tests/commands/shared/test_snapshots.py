"""Memory snapshots on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from tests.support.memory_files import GOLDEN
from tests.support.snapshot_files import SNAPSHOT


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "snapshot.json").write_text(json.dumps(SNAPSHOT))
    return str(tmp_path / "snapshot.json")


def test_analyze_memory_takes_a_snapshot_for_a_run(path: str) -> None:
    """As tables, and as JSON with the same figures."""
    tables, data = (CliRunner().invoke(cli, ["analyze", "--memory", *form, path]) for form in ([], ["--json"]))

    assert "fragmentation" in tables.stdout
    [snapshot] = json.loads(data.stdout)["snapshots"]
    assert [512, 0] == [device["inactive_split_bytes"] for device in snapshot["devices"]]


@pytest.mark.parametrize("other", [["--steps", "4"], ["--ranks", "0"], ["--csv"]])
def test_options_of_a_run_are_refused(path: str, other: list[str]) -> None:
    """A snapshot has no steps, ranks or rows."""
    assert 2 == CliRunner().invoke(cli, ["analyze", "--memory", *other, path]).exit_code


def test_a_snapshot_is_never_overwritten(path: str) -> None:
    """Not even with --force: it is the input."""
    result = CliRunner().invoke(cli, ["analyze", "--memory", path, "--json", "-o", path, "--force"])

    assert 2 == result.exit_code
    assert SNAPSHOT == json.loads(Path(path).read_text())


def test_several_files_must_be_snapshots(path: str) -> None:
    """The file that is none is named."""
    result = CliRunner().invoke(cli, ["analyze", "--memory", path, str(GOLDEN / "run.json")])

    assert 1 == result.exit_code
    assert "run.json" in result.stderr
