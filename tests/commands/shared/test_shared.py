"""What the verbs share."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from dptrace.commands.shared.shared import progress
from tests.support.kineto_files import KinetoFile, training_step


def test_quiet_says_nothing_but_notes_and_the_answer(tmp_path: Path) -> None:
    """-q hides advice, never what the user must know to believe the figures; -v tells each file."""
    path = training_step(KinetoFile(rank=0, world_size=2), 1, 0).write(tmp_path / "r0.json")
    normal, quiet, loud = (CliRunner().invoke(cli, ["analyze", str(path), *flag]) for flag in ([], ["-q"], ["-v"]))

    assert quiet.stdout == normal.stdout
    assert ("", "Next:" in normal.stderr) == (quiet.stderr, True)
    assert "Read r0.json (1 of 1)" in loud.stderr
    assert "rank 1" in CliRunner().invoke(cli, ["analyze", str(path), "-q", "--csv"]).stderr


def test_progress_is_silent_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Piped or logged, no bar is drawn however long it takes."""
    with progress("Reading") as show:
        show(0.5, "a file")

    assert ("", "") == tuple(capsys.readouterr())


@pytest.mark.parametrize("option", [["-o", "nofolder/"], ["-o", "a" * 300], ["--comm-pattern", "a{99999999999}"]])
def test_wrong_use_is_told_before_any_work(option: list[str], tmp_path: Path) -> None:
    """A folder's name, a name too long, a pattern too large: exit code 2 and a sentence."""
    path = training_step(KinetoFile(), 1, 0).write(tmp_path / "r0.json")
    result = CliRunner().invoke(cli, ["analyze", str(path), *option])

    assert (2, True) == (result.exit_code, result.exception is None or isinstance(result.exception, SystemExit))


@pytest.mark.parametrize("path", ["", "~nobodyhere/x.json", "a" * 5000])
def test_paths_that_are_none_are_told(path: str) -> None:
    """No traceback for an empty, an overlong or an impossible path."""
    result = CliRunner().invoke(cli, ["analyze", path])

    assert result.exit_code in (1, 2)
    assert "Error" in result.output
