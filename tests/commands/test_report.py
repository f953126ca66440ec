"""``dptrace report`` as a user runs it."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from tests.support.kineto_files import KinetoFile, training_step


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two ranks in a folder, in a folder of our own to work in."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "run"
    place.mkdir()
    for rank in (0, 1):
        file = training_step(training_step(KinetoFile(rank=rank, world_size=2), 4, 0), 5, 100)
        file.write(place / f"r{rank}.json.gz")
    return place


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


@pytest.mark.heavy
def test_a_report_is_written_here_under_the_run_s_name(folder: Path) -> None:
    """It says what it wrote and what to do next, and leaves nothing else."""
    result = run(folder)

    assert 0 == result.exit_code, result.output
    assert "Wrote run-report.html (" in result.output
    assert f"Next: dptrace view {folder}" in result.output
    assert {"run", "run-report.html"} == {path.name for path in folder.parent.iterdir()}
    assert "A step takes" in (folder.parent / "run-report.html").read_text(encoding="utf-8")
    # In a clone's own folder, where the examples of the documentation run, it is no new file.
    ignored = (Path(__file__).parents[2] / ".gitignore").read_text().splitlines()
    assert any(fnmatch("/run-report.html", pattern) for pattern in ignored)


@pytest.mark.heavy
def test_ranks_and_steps_can_be_chosen(folder: Path) -> None:
    """As of a view, and the report says so."""
    result = run(folder, "--ranks", "1", "--steps", "5", "-q")
    page = (folder.parent / "run-report.html").read_text(encoding="utf-8")

    assert 0 == result.exit_code, result.output
    assert "" == result.output
    assert "Only step 5 is selected" in page
    assert "1 of 2 ranks" in page
