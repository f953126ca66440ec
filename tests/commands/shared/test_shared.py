"""What the verbs share."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from dptrace.commands.shared.shared import check_output, progress, replacing
from dptrace.errors import DptraceError, UsageError
from tests.support.kineto_files import KinetoFile, training_step


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


def test_a_folder_that_was_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In words, not by the number of an error."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(UsageError, match="the folder that you are in was removed"):
        check_output(Path("x.html"), force=False)


def test_quiet_says_nothing_but_notes_and_the_answer(tmp_path: Path) -> None:
    """-q hides advice, never what the user must know to believe the figures; -v tells each file."""
    path = training_step(KinetoFile(rank=0, world_size=2), 1, 0).write(tmp_path / "r0.json")
    normal, quiet, loud = (CliRunner().invoke(cli, ["analyze", str(path), *flag]) for flag in ([], ["-q"], ["-v"]))

    assert quiet.stdout == normal.stdout
    assert ("", "Next:" in normal.stderr) == (quiet.stderr, True)
    assert "Read r0.json (1 of 1)" in loud.stderr
    assert "without a trace here: rank 1" in CliRunner().invoke(cli, ["analyze", str(path), "-q", "--csv"]).stderr


def test_progress_is_silent_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Piped or logged, no bar is drawn however long it takes."""
    with progress("Reading") as show:
        show(0.5, "a file")

    assert ("", "") == tuple(capsys.readouterr())


def test_a_link_is_followed_and_a_device_written_to(tmp_path: Path) -> None:
    """-o never replaces what is not a plain file."""
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    (tmp_path / "device").symlink_to("/dev/null")
    for name in ("link.txt", "device"):
        check_output(tmp_path / name, force=True)
        with replacing(tmp_path / name) as beside:
            beside.write_text("new")

    assert "new" == (tmp_path / "real.txt").read_text()
    assert (tmp_path / "link.txt").is_symlink()
    assert Path("/dev/null").is_char_device()


def test_a_name_as_long_as_a_name_may_be_is_written(tmp_path: Path) -> None:
    """The file beside needs no longer name than the file."""
    path = tmp_path / ("a" * 250 + ".txt")
    with replacing(path) as beside:
        beside.write_text("x")

    assert [path] == list(tmp_path.iterdir())


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
