"""Atomic writes and checks of output paths."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from dptrace.core.files import atomic_write, check_output, open_part
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


def test_two_writers_into_one_folder_keep_apart(tmp_path: Path) -> None:
    """Each has a file of its own, which a link that somebody else puts there does not lead elsewhere."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / f".dptrace.{os.getpid()}.part").symlink_to("mine")
    with atomic_write(tmp_path / "a") as first, atomic_write(tmp_path / "b") as second:
        first.write_text("a")
        second.write_text("b")

    assert ["mine", "a", "b"] == [(tmp_path / name).read_text() for name in ("mine", "a", "b")]


def test_a_file_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    """The umask alone decides who may read it."""
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "a") as temporary:
            temporary.write_text("a")
    finally:
        os.umask(before)

    assert 0o640 == (tmp_path / "a").stat().st_mode & 0o777


@pytest.mark.parametrize("locks", [True, False])
def test_what_a_killed_process_left_is_removed(locks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock, which ends with a process, says whether it lives; where there are no locks, the age of the file."""

    def no_locks(file: int, kind: int) -> None:
        raise OSError(37, "No locks available")

    if not locks:
        monkeypatch.setattr(fcntl, "flock", no_locks)
    left, file = open_part(tmp_path)
    file.close()
    os.utime(left, None if locks else (1, 1))
    (tmp_path / ".dptrace.notes.part").write_text("mine")
    with atomic_write(tmp_path / "a") as first, atomic_write(tmp_path / "b") as second:
        assert first.exists()
        second.write_text("b")

    assert {"a", "b", ".dptrace.notes.part"} == {path.name for path in tmp_path.iterdir()}


def test_a_part_that_is_removed_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that starts at the same moment takes it for one that was left."""
    lock = fcntl.flock

    def late(file: int, kind: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        open_part(tmp_path)[1].close()
        lock(file, kind)

    monkeypatch.setattr(fcntl, "flock", late)
    with atomic_write(tmp_path / "a") as temporary:
        temporary.write_text("a")

    assert "a" == (tmp_path / "a").read_text()
