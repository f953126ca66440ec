"""Atomic writes and checks of output paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.core.files import atomic_write, check_output
from dptrace.errors import DptraceError, UsageError


def test_replacing_leaves_nothing_when_the_writer_fails(tmp_path: Path) -> None:
    """An error while writing leaves the old file unchanged and no other file."""
    path = tmp_path / "a.txt"
    path.write_text("old")

    with pytest.raises(ZeroDivisionError), atomic_write(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError

    assert ("old", [path]) == (path.read_text(), list(tmp_path.iterdir()))


def test_replacing_turns_a_full_disk_into_advice(tmp_path: Path) -> None:
    """An operating system error names the file."""
    with pytest.raises(DptraceError, match=r"a\.txt: can't be written"), atomic_write(tmp_path / "a.txt"):
        raise OSError(28, "No space left on device")


def test_check_output_refuses_before_any_work(tmp_path: Path) -> None:
    """A folder, an existing file and a missing folder are usage errors."""
    (tmp_path / "a").write_text("")
    for path in (tmp_path, tmp_path / "a", tmp_path / "no" / "b"):
        with pytest.raises(UsageError):
            check_output(path, force=False)
    check_output(tmp_path / "a", force=True)


def test_a_removed_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says so, without an error number."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(UsageError, match="folder was removed"):
        check_output(Path("x.html"), force=False)


def test_a_link_is_followed_and_a_device_written_to(tmp_path: Path) -> None:
    """-o never replaces anything but a plain file."""
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    (tmp_path / "device").symlink_to("/dev/null")
    for name in ("link.txt", "device"):
        check_output(tmp_path / name, force=True)
        with atomic_write(tmp_path / name) as temporary:
            temporary.write_text("new")

    assert "new" == (tmp_path / "real.txt").read_text()
    assert (tmp_path / "link.txt").is_symlink()
    assert Path("/dev/null").is_char_device()


def test_a_name_as_long_as_a_name_may_be_is_written(tmp_path: Path) -> None:
    """The temporary file's name is not longer than the file's."""
    path = tmp_path / ("a" * 250 + ".txt")
    with atomic_write(path) as temporary:
        temporary.write_text("x")

    assert [path] == list(tmp_path.iterdir())
