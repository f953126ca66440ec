"""What the verbs share."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dptrace.cli import cli
from dptrace.commands.common import check_output, progress, replacing
from dptrace.errors import DptraceError, UsageError
from tests.kineto_files import KinetoFile, training_step


def test_replacing_leaves_nothing_when_the_writer_fails(tmp_path: Path) -> None:
    """An error while writing leaves the old file as it was and no file beside it."""
    path = tmp_path / "a.txt"
    path.write_text("old")

    with pytest.raises(ZeroDivisionError), replacing(path) as beside:
        beside.write_text("half")
        raise ZeroDivisionError

    assert ("old", [path]) == (path.read_text(), list(tmp_path.iterdir()))


def test_replacing_turns_a_full_disk_into_advice(tmp_path: Path) -> None:
    """An operating system error names the file."""
    with pytest.raises(DptraceError, match=r"a\.txt: can't be written"), replacing(tmp_path / "a.txt"):
        raise OSError(28, "No space left on device")


def test_check_output_refuses_before_any_work(tmp_path: Path) -> None:
    """A folder, an existing file and a missing folder are wrong use."""
    (tmp_path / "a").write_text("")
    for path in (tmp_path, tmp_path / "a", tmp_path / "no" / "b"):
        with pytest.raises(UsageError):
            check_output(path, force=False)
    check_output(tmp_path / "a", force=True)


def test_quiet_says_nothing_but_notes_and_the_answer(tmp_path: Path) -> None:
    """-q hides advice, never what the user must know to believe the figures; -v tells each file."""
    path = training_step(KinetoFile(rank=0, world_size=2), 1, 0).write(tmp_path / "r0.json")
    normal, quiet, loud = (CliRunner().invoke(cli, ["analyze", str(path), *flag]) for flag in ([], ["-q"], ["-v"]))

    assert quiet.stdout == normal.stdout
    assert ("", "Next:" in normal.stderr) == (quiet.stderr, True)
    assert "Reading r0.json (1 of 1)" in loud.stderr
    assert "without a trace here: rank 1" in CliRunner().invoke(cli, ["analyze", str(path), "-q", "--csv"]).stderr


def test_progress_is_silent_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Piped or logged, no bar is drawn however long it takes."""
    with progress("Reading") as show:
        show(0.5, "a file")

    assert ("", "") == tuple(capsys.readouterr())
