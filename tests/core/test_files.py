"""Atomic writes and checks of output paths."""

from __future__ import annotations

import fcntl
import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dptrace.core import files
from dptrace.core.files import (
    atomic_write,
    cache_folder,
    check_output,
    command_files,
    ensure_home,
    note_inputs,
    note_output,
    open_part,
    refuse_overwriting,
)
from dptrace.errors import DptraceError, UsageError
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.paths import ROOT


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    """An error leaves the old file and no other; the new one has any new file's mode, and a name of any length."""
    path = tmp_path / ("a" * 250 + ".txt")
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    with pytest.raises(DptraceError, match=r"a\.txt: can't be written"), atomic_write(path):
        raise OSError(28, "No space left on device")
    assert ("old", [path]) == (path.read_text(), list(tmp_path.iterdir()))

    before = os.umask(0o027)
    try:
        with atomic_write(path) as temporary:
            temporary.write_text("new")
    finally:
        os.umask(before)
    assert ("new", 0o640, [path]) == (path.read_text(), path.stat().st_mode & 0o777, list(tmp_path.iterdir()))


def test_check_output_refuses_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, an existing file, a missing folder and one that was removed are usage errors."""
    (tmp_path / "a").write_text("")
    (tmp_path / "gone").mkdir()
    for path in (tmp_path, tmp_path / "a", tmp_path / "no" / "b"):
        with pytest.raises(UsageError):
            check_output(path, force=False)
    check_output(tmp_path / "a", force=True)
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
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
    files._remove_stale_parts.cache_clear()  # as of the next process
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
        files._remove_stale_parts.cache_clear()
        open_part(tmp_path)[1].close()
        lock(file, kind)

    monkeypatch.setattr(fcntl, "flock", late)
    with atomic_write(tmp_path / "a") as temporary:
        temporary.write_text("a")

    assert "a" == (tmp_path / "a").read_text()


# The user's folders, and what takes their place.


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the system's folder for temporary files be one of the test's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("DPTRACE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


@pytest.fixture
def homeless(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be a user without HOME and without an entry in passwd."""

    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setenv("HOME", "/nowhere")  # so that it is restored
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    return temporary


def test_a_user_without_a_home_gets_a_private_temporary_one(homeless: Path) -> None:
    """The same each time, with the cache in it; nobody else may enter."""
    without = cache_folder()
    ensure_home()
    home = Path.home()

    assert homeless == home.parent
    assert 0o700 == home.stat().st_mode & 0o777
    assert home / ".cache" / "dptrace" == without == cache_folder()


@pytest.mark.parametrize("writable", [True, False])
def test_the_cache_is_in_a_home_that_can_be_written(
    writable: bool, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even before it exists; else in the folder for temporary files, as of a container's user whose home is /."""
    home = temporary / "home"
    if not writable:
        home.write_text("")
    monkeypatch.setenv("HOME", str(home))
    ensure_home()

    private = home if writable else temporary / f"dptrace-{os.getuid()}"
    assert private / ".cache" / "dptrace" == cache_folder()
    assert writable == (not list(temporary.iterdir()))


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_folder_that_is_not_private_is_not_trusted(homeless: Path, kind: str) -> None:
    """Someone else may have made it: the home is then the root folder, and nothing is cached in it."""
    place = homeless / f"dptrace-{os.getuid()}"
    if kind == "open":
        place.mkdir()
        place.chmod(0o777)
    elif kind == "link":
        (homeless / "theirs").mkdir(mode=0o700)
        place.symlink_to("theirs")
    else:
        place.write_text("")
    ensure_home()

    assert Path("/") == Path.home()
    assert not cache_folder().is_relative_to(homeless)


@pytest.mark.slow
def test_a_page_is_drawn_without_a_home(tmp_path: Path) -> None:
    """Bokeh, which looks for its settings in the home folder when it is imported, is content with the other one."""
    trace = training_step(KinetoFile(), 1, 0).write(tmp_path / "rank0.json")
    code = "import pwd; del pwd.getpwuid; pwd.getpwuid = {}.__getitem__; from dptrace.__main__ import main; main()"
    kept = {
        name: value for name, value in os.environ.items() if name not in ("HOME", "DPTRACE_CACHE", "XDG_CACHE_HOME")
    }
    done = subprocess.run(
        [sys.executable, "-c", code, "view", str(trace), "--no-browser"],
        env={**kept, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )

    assert 0 == done.returncode, done.stderr
    assert 1 == len(list(tmp_path.glob(f"dptrace-{os.getuid()}/.cache/dptrace/pages/*.html")))


# Files that a command reads and writes.


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "rank0.json"
    path.write_text("recorded")
    return path


def spellings(trace: Path) -> dict[str, Path]:
    """Name a file in all ways that a file system has."""
    here = trace.parents[1]
    (here / "link.json").symlink_to(trace)
    os.link(trace, here / "hard.json")
    (here / "folder").symlink_to(trace.parent)
    return {
        "the same path": trace,
        "another spelling": here / "run" / ".." / "run" / "rank0.json",
        "a relative path": Path(os.path.relpath(trace)),
        "a symbolic link": here / "link.json",
        "a hard link": here / "hard.json",
        "a linked folder": here / "folder" / "rank0.json",
    }


def test_an_input_is_no_output_by_any_name(trace: Path) -> None:
    """Whichever of the two is noted first."""
    for name, output in spellings(trace).items():
        for output_first in (True, False):
            with pytest.raises(UsageError, match="even with --force"), command_files():
                if output_first:
                    note_output(output)
                note_inputs([trace])
                note_output(output)
                pytest.fail(f"{name} was accepted")


def test_a_folder_with_an_input_is_no_output(trace: Path) -> None:
    """Nor is a folder above it, or a link to one; what a command has written there itself, it may read."""
    (trace.parents[1] / "folder").symlink_to("run")
    for output in (trace.parent, trace.parents[1], trace.parents[1] / "folder"):
        with pytest.raises(UsageError, match="even with --force"), command_files():
            note_inputs([trace])
            note_output(output)

        with command_files():
            note_output(output)
            note_inputs([trace])


def test_what_loses_nothing_is_an_output(trace: Path, tmp_path: Path) -> None:
    """New and other files of the run's folder, another folder, devices, pipes, and what an earlier command read."""
    (trace.parent / "export.pftrace").write_text("old")
    (trace.parents[1] / "runs").mkdir()
    os.mkfifo(tmp_path / "pipe")
    refuse_overwriting(["/dev/null", tmp_path / "pipe"], [tmp_path / "pipe", "/dev/null"])

    with command_files():
        note_inputs([trace])
        for name in ("run/new.html", "run/export.pftrace", "runs", "missing"):
            note_output(trace.parents[1] / name)
    with command_files():
        note_output(trace)
    note_inputs([trace])
    note_output(trace)  # outside of commands nothing is remembered
