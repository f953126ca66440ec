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
    assert 0 == CliRunner().invoke(cli, ["analyze", "--csv", str(path)]).exit_code
    (place / "mine.txt").write_text("kept")
    return place


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["cache", *arguments])
    assert 0 == result.exit_code, result.output
    return result


def test_what_is_there_is_printed_and_cleared(folder: Path) -> None:
    """As text and as JSON; files of others stay."""
    result, data = run(), json.loads(run("--json").stdout)

    assert f"{folder}: 1 parsed trace (" in result.stdout
    assert "0 pages (0 B)" in result.stdout
    assert ["--clear" in result.stderr, run("-q").stderr] == [True, ""]
    assert (str(folder), 1, 0, False) == (data["folder"], data["traces"], data["pages"], data["cleared"])
    assert data["trace_bytes"] == sum(
        path.stat().st_size for kind in ("rank", "figures") for path in folder.glob(f"*.{kind}")
    )
    assert "1 parsed trace" in run("--clear").stdout
    assert ["mine.txt"] == [path.name for path in folder.iterdir() if path.is_file()]
    assert "0 parsed traces" in run().stdout
    assert json.loads(run("--json", "--clear").stdout)["cleared"]
