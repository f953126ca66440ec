"""The run folder: no incomplete run under its name, and nothing replaced without permission."""

from __future__ import annotations

import json
import os
import platform
import signal
from pathlib import Path

import pytest

from dptrace.errors import DptraceError, UsageError
from dptrace.record.run_folder.folder import RunFolder, is_run_folder, trace_name


def _run(path: Path, *names: str) -> Path:
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"schema": 1, "status": "complete", "world_size": 1}))
    for name in (trace_name(0), *names):
        (path / name).write_text(name)
    return path


def _files(run: RunFolder) -> Path:
    """Return the folder of the run's files, as the ranks write it."""
    files = run.staging / "window1"
    files.mkdir(exist_ok=True)
    return files


def test_a_run_appears_under_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    """Until then its files are in a hidden folder next to it."""
    run = RunFolder(tmp_path / "runs" / "mine")
    run.begin(force=False)
    (_files(run) / trace_name(0)).write_text("new")

    assert not run.path.exists()
    run.complete(_files(run))
    run.discard()
    assert [trace_name(0)] == os.listdir(run.path)
    assert ["mine"] == os.listdir(tmp_path / "runs")


@pytest.mark.parametrize("name", ["two\nlines", "a\x1b[31mb", "tab\there"])
def test_a_name_with_control_signs_is_refused(name: str, tmp_path: Path) -> None:
    """It would break lines of output or control a terminal; other letters are accepted."""
    with pytest.raises(UsageError, match="line breaks or control char"):
        RunFolder(tmp_path / name).begin(force=False)
    RunFolder(tmp_path / "läuft gut").begin(force=False)

    assert [".läuft gut.recording"] == os.listdir(tmp_path)


def test_a_run_is_replaced_only_with_force_and_only_at_the_end(tmp_path: Path) -> None:
    """The old run stays until the new one is complete."""
    run = RunFolder(_run(tmp_path / "mine", "rank1.log"))
    with pytest.raises(UsageError, match="Replace it with --force"):
        run.begin(force=False)

    run.begin(force=True)
    assert (run.path / "rank1.log").exists()
    run.complete(_files(run))
    run.discard()
    assert [] == os.listdir(run.path)
    assert ["mine"] == os.listdir(tmp_path)


def test_a_run_is_not_replaced_by_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal between its steps waits until the new run is there and the old one is gone."""
    run = RunFolder(_run(tmp_path / "mine", "rank1.log"))
    run.begin(force=True)
    (_files(run) / trace_name(0)).write_text("new")
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        os.kill(os.getpid(), signal.SIGINT)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest-xdist ignores it in its processes
    try:
        with pytest.raises(KeyboardInterrupt):
            run.complete(_files(run))
    finally:
        signal.signal(signal.SIGINT, before)
    run.discard()

    assert "new" == (run.path / trace_name(0)).read_text()
    assert ["mine"] == os.listdir(tmp_path)


@pytest.mark.parametrize("stranger", ["notes.txt", "rank0.pt.trace.json", "model.pt"])
def test_force_does_not_replace_what_is_more_than_a_run(tmp_path: Path, stranger: str) -> None:
    """A folder with any other file stays as it is."""
    path = _run(tmp_path / "mine", stranger)

    assert not is_run_folder(path)
    with pytest.raises(UsageError, match="even --force does not"):
        RunFolder(path).begin(force=True)
    assert (path / stranger).exists()


def test_a_file_or_a_link_in_the_way_is_no_run(tmp_path: Path) -> None:
    """A file, and a link to a folder, are refused; an empty folder is used."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(_run(tmp_path / "elsewhere"))
    for name in ("file", "link"):
        with pytest.raises(UsageError, match="is not a folder"):
            RunFolder(tmp_path / name).begin(force=True)

    (tmp_path / "empty").mkdir()
    run = RunFolder(tmp_path / "empty")
    run.begin(force=False)
    run.complete(_files(run))
    assert run.path.is_dir()


def test_a_failed_run_gets_a_name_that_says_so_and_hides_no_other(tmp_path: Path) -> None:
    """Failed runs are numbered, so that earlier ones stay."""
    names = []
    for _ in range(2):
        run = RunFolder(tmp_path / "mine")
        run.begin(force=False)
        names.append(run.keep_failed(_files(run)).name)
        run.discard()

    assert ["mine.failed", "mine.failed-2"] == names
    assert set(names) == set(os.listdir(tmp_path))


def test_two_recordings_to_one_folder_are_refused(tmp_path: Path) -> None:
    """The second would empty the folder of the first; the folder of a dead recording is reused."""
    first, second = RunFolder(tmp_path / "mine"), RunFolder(tmp_path / "mine")
    first.begin(force=False)
    (first.staging / "owner").write_text(str(os.getppid()))
    with pytest.raises(DptraceError, match="in progress"):
        second.begin(force=False)

    (first.staging / "owner").write_text("999999999")
    second.begin(force=False)
    assert ["owner"] == os.listdir(second.staging)


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    """A file instead of a parent folder is an error with the path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DptraceError, match="cannot be created"):
        RunFolder(tmp_path / "file" / "mine").begin(force=False)


def test_another_users_recording_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may not be signaled is running as well."""

    def refuse(process: int, number: int) -> None:
        raise PermissionError

    first = RunFolder(tmp_path / "mine")
    first.begin(force=False)
    (first.staging / "owner").write_text(f"1 {platform.node()}")
    monkeypatch.setattr("os.kill", refuse)

    with pytest.raises(DptraceError, match="in progress on this machine"):
        RunFolder(tmp_path / "mine").begin(force=False)


def test_another_machines_recording_is_under_way_while_it_is_fresh(tmp_path: Path) -> None:
    """Its process ids mean nothing here; the message says how to continue, and a folder that is days old is reused."""
    first = RunFolder(tmp_path / "mine")
    first.begin(force=False)
    owner = first.staging / "owner"
    owner.write_text("999999999 elsewhere")
    with pytest.raises(DptraceError, match=r"in progress on elsewhere.*remove .*\.mine\.recording"):
        RunFolder(tmp_path / "mine").begin(force=False)

    os.utime(owner, (1, 1))
    RunFolder(tmp_path / "mine").begin(force=False)
    assert f"{os.getpid()} {platform.node()}" == owner.read_text()


def test_what_the_script_wrote_into_its_run_stays(tmp_path: Path) -> None:
    """The run's files are added; if a name is taken, the run gets another one."""
    for name, kept in (("model.pt", "mine"), ("run.json", "mine.run")):
        folder = tmp_path / name.replace(".", "-")
        run = RunFolder(folder / "mine")
        run.begin(force=False)
        (_files(run) / "run.json").write_text("{}")
        (folder / "mine").mkdir()
        (folder / "mine" / name).write_text("the script's")

        assert folder / kept == run.complete(_files(run))
        assert "the script's" == (folder / "mine" / name).read_text()
        assert (folder / kept / "run.json").exists()
        assert not (run.staging / "window1").exists()


def test_neighbours_that_are_not_ours_stay(tmp_path: Path) -> None:
    """A hidden folder that is not from a recording is in the way and reported; others are not touched."""
    (tmp_path / ".mine.recording").mkdir()
    (tmp_path / ".mine.recording" / "thesis.txt").write_text("")
    with pytest.raises(DptraceError, match="move it elsewhere"):
        RunFolder(tmp_path / "mine").begin(force=False)
    assert (tmp_path / ".mine.recording" / "thesis.txt").exists()
    (tmp_path / ".other.replaced").mkdir()
    run = RunFolder(_run(tmp_path / "other"))
    run.begin(force=True)
    run.complete(_files(run))
    assert (tmp_path / ".other.replaced").exists()


def test_a_folder_named_like_a_log_is_not_ours(tmp_path: Path) -> None:
    """A run contains only plain files."""
    path = _run(tmp_path / "mine")
    (path / "rank0.log").mkdir()
    (path / "rank0.log" / "thesis.txt").write_text("")

    assert not is_run_folder(path)


@pytest.mark.parametrize("out", [".", "/", ".."])
def test_the_folder_that_one_is_in_is_no_run(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replacing the working directory of the shell is refused."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="the folder you are in"):
        RunFolder(Path(out))


def test_later_runs_of_a_job_are_numbered(tmp_path: Path) -> None:
    """The second run of a job has its number in its name, and hides no run that is there."""
    run = RunFolder(tmp_path / "mine")
    run.begin(force=False)
    _run(tmp_path / "mine-3")
    names = [run.complete(_files(run), number).name for number in (1, 2, 3)]

    assert ["mine", "mine-2", "mine.run"] == names
