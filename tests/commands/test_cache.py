"""``dptrace cache`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from tests.support.kineto_files import KinetoFile, training_step


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with one parsed trace and a file of another program."""
    place = tmp_path / "cache"
    monkeypatch.setenv("DPTRACE_CACHE", str(place))
    path = training_step(KinetoFile(), 1, 0).write(tmp_path / "rank0.json")
    assert 0 == CliRunner().invoke(cli, ["analyze", "--no-gains", str(path)]).exit_code
    (place / "mine.txt").write_text("kept")
    return place


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["cache", *arguments])
    assert 0 == result.exit_code, result.output
    return result


def test_the_folder_and_its_size_are_printed(folder: Path) -> None:
    """Where it is, how many traces, how large; and how to clear it."""
    result = run()

    assert f"{folder}: 1 parsed trace (" in result.stdout
    assert "0 pages (0 B)" in result.stdout
    assert "--clear" in result.stderr
    assert "" == run("-q").stderr


def test_clear_deletes_dptraces_files_only(folder: Path) -> None:
    """Files of others stay, and the cache is empty then."""
    assert "1 parsed trace" in run("--clear").stdout
    assert ["mine.txt"] == [path.name for path in folder.iterdir() if path.is_file()]
    assert "0 parsed traces" in run().stdout


def test_json_has_the_figures(folder: Path) -> None:
    """Counts and bytes."""
    data = json.loads(run("--json").stdout)

    assert (str(folder), 1, 0, False) == (data["folder"], data["traces"], data["pages"], data["cleared"])
    assert data["trace_bytes"] == sum(path.stat().st_size for path in folder.glob("*.rank"))
    assert json.loads(run("--json", "--clear").stdout)["cleared"]
