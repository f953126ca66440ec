"""The folder of checkpoints, and the sentence on them after an interrupted training."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dptrace.errors import DptraceError, UsageError
from dptrace.record.messages import recorded_marker
from dptrace.record.run_folder import (
    RunFolder,
    add_overhead,
    check_writable,
    checkpoint_steps,
    finish_for_launcher,
    is_run_folder,
    kept_checkpoints_message,
    launch_metadata,
    manifest,
    overhead,
    overhead_figures,
    ranks_elsewhere_note,
    trace_name,
    write_manifest,
)
from tests.support.recordings import recorded


def test_a_killed_launcher_leaves_word_of_the_runs_that_are_complete(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The ranks that outlive it name them, and remove its staging folder."""
    run = RunFolder(tmp_path / "r")
    run.begin(force=False)
    run.path.mkdir()
    (run.path / trace_name(0)).write_text("")
    (run.path / "run.json").write_text("{}")
    recorded_marker(run.staging, 1).touch()
    with subprocess.Popen([sys.executable, "-c", ""]) as launcher:
        launcher.wait()
    (run.staging / "owner").write_text(f"{launcher.pid} {platform.node()}")

    finish_for_launcher(run.staging, launcher.pid)
    assert str(run.path) in capfd.readouterr().err
    assert not run.staging.exists()


def test_only_whole_checkpoints_count(tmp_path: Path) -> None:
    """They are listed in the order of steps; partial and other files do not count."""
    assert [] == checkpoint_steps(tmp_path / "none")
    for name in ("step-00000010", "step-00000005", ".step-00000015.part", "notes.txt"):
        (tmp_path / name).write_text("")

    assert [5, 10] == checkpoint_steps(tmp_path)


def test_what_stays_is_said_with_the_way_to_go_on(tmp_path: Path) -> None:
    """The sentence names folder, last step and option; it is empty without checkpoints."""
    assert "" == kept_checkpoints_message(None) == kept_checkpoints_message(tmp_path)
    folder = tmp_path / "my own"
    folder.mkdir()
    (folder / "step-00000005").write_text("")

    message = kept_checkpoints_message(folder)
    assert all(fact in message for fact in (f"'{folder}'", "step 5", "--resume"))


def test_a_folder_that_cannot_be_made_is_refused_and_one_that_can_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path below a file cannot be a folder. None is made for a moment: another rank would see it come and go."""
    (tmp_path / "file").write_text("mine")
    monkeypatch.delattr(Path, "mkdir")
    monkeypatch.delattr(os, "mkdir")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=r"no checkpoint can be written there: (File exists|Not a directory)"):
            check_writable(place)
    check_writable(tmp_path / "new" / "deeper")
    check_writable(tmp_path)

    assert ["file"] == [path.name for path in tmp_path.iterdir()]


# The run folder: no incomplete run under its name, and nothing replaced without permission.


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
    """A file, a link to a folder, and a path below a file are refused; an empty folder is used."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(_run(tmp_path / "elsewhere"))
    for name, says in (("file", "is not a folder"), ("link", "is not a folder"), ("file/mine", "cannot be created")):
        with pytest.raises(DptraceError, match=says):
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


def test_two_recordings_to_one_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this user, of another one, whose process may not be signaled, and of another machine, where a process id means
    nothing here, while it is fresh; the folder of a dead recording is reused."""

    def refuse(process: int, number: int) -> None:
        raise PermissionError

    RunFolder(tmp_path / "mine").begin(force=False)
    second = RunFolder(tmp_path / "mine")
    owner = second.staging / "owner"

    def refused(text: str, says: str) -> None:
        owner.write_text(text)
        with pytest.raises(DptraceError, match=says):
            second.begin(force=False)

    refused(str(os.getppid()), "in progress")
    refused("999999999 elsewhere", r"in progress on elsewhere.*remove .*\.mine\.recording")
    with monkeypatch.context() as patched:
        patched.setattr("os.kill", refuse)
        refused(f"1 {platform.node()}", "in progress on this machine")
    for text, modified in (("999999999", None), ("999999999 elsewhere", (1, 1))):
        owner.write_text(text)
        os.utime(owner, modified)
        second.begin(force=False)
        assert ["owner"] == os.listdir(second.staging)
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


# run.json.


DOCUMENTED = Path(__file__).parents[2] / "docs" / "reference" / "run-folder.md"


def _piece(rank: int, **values: Any) -> dict[str, Any]:
    run_keys = ("model", "parameters", "options", "schedule", "backend", "versions", "ddp")
    rank_keys = ("node", "local_rank", "host", "device", "threads", "file", "recorded_steps", "memory")
    piece = dict.fromkeys((*run_keys, *rank_keys)) | {"world_size": 2, "losses": [], "notes": []}
    return piece | {"rank": rank, "unprofiled_ns": [], "profiled_ns": [], "overhead_windows": []} | values


COMPLETE = launch_metadata(["dptrace"], "naive", None, None)


def test_losses_are_averaged_over_ranks() -> None:
    """A rank's loss is that of its shard; a loss that is not finite becomes null."""
    pieces = [_piece(0, losses=[1.0, 2.0, float("nan"), None]), _piece(1, losses=[3.0, 2.5, 1.0, 1.0])]

    assert [2.0, 2.25, None, None] == manifest(pieces, COMPLETE)["losses"]


def test_the_overhead_is_reported_from_medians() -> None:
    """One slow step does not affect the overhead; without both times it is unknown."""
    ranks = [
        {"unprofiled_ns": [100, 100, 900], "profiled_ns": [110, 110, 110]},
        {"unprofiled_ns": [100, 100, 100], "profiled_ns": [130, 130, 9000]},
    ]

    assert 0.2 == overhead(ranks)
    assert overhead([{"unprofiled_ns": [], "profiled_ns": [1]}]) is None


def test_the_overhead_is_that_of_alternating_windows() -> None:
    """A drift of the machine affects windows of both kinds; the recorded steps, at another time, do not count."""
    times = ((False, [100, 100]), (True, [121, 121, 900]), (False, [120, 120]), (True, [121]))
    windows = [{"profiled": profiled, "step_ns": ns} for profiled, ns in times]

    assert 0.1 == overhead([{"overhead_windows": windows, "unprofiled_ns": [1], "profiled_ns": [500]}])


@pytest.mark.parametrize(
    ("steps_ns", "told"),
    [((4, 9, 4, 5, 4), None), ((4, 6, 9, 6, 4), None), ((40, 43, 40, 42, 41), 0.0537), ((4, 9, 4, 8, 4), 1.125)],
    ids=["apart", "without it", "steady", "large"],
)
def test_an_overhead_is_told_only_where_windows_agree(steps_ns: tuple[int, ...], told: float | None) -> None:
    """On a busy machine wall times tell nothing, and the processor time still does."""
    windows = [
        {"profiled": bool(number % 2), "step_ns": [ns], "cpu_ns": [209 if number % 2 else 200]}
        for number, ns in enumerate(steps_ns)
    ]
    figures = overhead_figures([{"overhead_windows": windows, "unprofiled_ns": [1], "profiled_ns": []}])

    assert (told, 0.045) == (figures["profiler_overhead"], figures["profiler_cpu_overhead"])
    low, high = figures["profiler_overhead_range"]
    assert (told is None) == (high - low > max(0.1, told or 0.0))


def test_an_overhead_measured_later_is_added(tmp_path: Path) -> None:
    """The run keeps all else; a rank without times of its own is left as it is."""
    (tmp_path / "rank0.piece.json").write_text(json.dumps(_piece(0, file="a")))
    (tmp_path / "rank1.piece.json").write_text(json.dumps(_piece(1, file="b")))
    before = write_manifest(tmp_path, COMPLETE)
    windows = [{"profiled": False, "step_ns": [100]}, {"profiled": True, "step_ns": [150]}]
    add_overhead(tmp_path, [{"rank": 1, "unprofiled_ns": [100], "overhead_windows": windows}])

    after = json.loads((tmp_path / "run.json").read_text())
    assert (None, 0.5) == (before["profiler_overhead"], after["profiler_overhead"])
    assert [[], windows] == [rank["overhead_windows"] for rank in after["ranks"]]
    assert before["ranks"][0] == after["ranks"][0]


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([_piece(1)], "1 rank of 2 (1)"),  # the script did not profile the other
        ([_piece(0, recorded_steps=1), _piece(1, recorded_steps=5)], "1 to 5"),
    ],
)
def test_ranks_that_are_missing_or_shorter_are_reported(pieces: list[dict[str, Any]], says: str) -> None:
    """A complete run has a note; a failed one needs none."""
    (note,) = manifest(pieces, COMPLETE)["notes"]
    failed = manifest(pieces, launch_metadata(["dptrace"], "naive", None, {"rank": 1, "message": "killed"}))

    assert says in note
    assert ("failed", []) == (failed["status"], failed["notes"])


def test_ranks_on_other_machines_are_reported_where_these_are_recorded() -> None:
    """They may be copied next to these, so that run.json does not have the note; a failed run needs none."""
    here = manifest([_piece(0, schedule={"steps": 1})], COMPLETE)
    failed = manifest([_piece(0)], launch_metadata(["dptrace"], "naive", None, {"rank": 1, "message": "killed"}))

    assert [] == here["notes"]
    assert "1 of 2 ranks are here; " in ranks_elsewhere_note(here)
    assert "" == ranks_elsewhere_note(failed)


def test_repeated_restarts_are_counted() -> None:
    """Two failures of one rank for one reason are one note that counts them; another rank's has its own."""
    killed, lost = {"rank": 1, "message": "killed by SIGKILL"}, {"rank": None, "message": "unknown"}

    notes = manifest([], COMPLETE | {"restarts": [killed, lost, killed]} | {"status": "failed"})["notes"]

    assert 2 == len(notes)
    assert "Rank 1 failed 2 times (killed by SIGKILL)" in notes[0]
    assert "A rank failed (unknown)" in notes[1]


def _described(heading: str, until: str) -> set[str]:
    text = DOCUMENTED.read_text(encoding="utf-8")
    part = text[text.index(heading) : text.index(until)]
    return set(re.findall(r"^\| `(\w+)` \|", part, flags=re.MULTILINE))


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize(("mode", "ranks"), [("single", 1), ("ddp", 2)])
def test_run_json_is_as_documented(mode: str, ranks: int) -> None:
    """Its keys are those in docs/reference/run-folder.md, and its values are those of this run."""
    info = json.loads((recorded(mode, ranks) / "run.json").read_text())

    assert _described("## run.json", "### Each rank") == set(info)
    assert (1, "complete", None, mode, None) == tuple(
        info[key] for key in ("schema", "status", "failure", "mode", "script")
    )
    assert ("small", 1_462_538, ranks, 1, "gloo") == tuple(
        info[key] for key in ("model", "parameters", "world_size", "nnodes", "backend")
    )
    assert {"dptrace", "torch", "python", "cuda", "nccl"} == set(info["versions"])
    assert {"wait": 4, "warmup": 2, "steps": 2} == info["schedule"]
    assert [] == info["notes"]
    assert list(range(ranks)) == [rank["rank"] for rank in info["ranks"]]
    for rank in info["ranks"]:
        assert _described("### Each rank", "### Memory") == set(rank)
        assert ("CPU", 2, 2, 2) == (
            rank["device"], rank["recorded_steps"], len(rank["unprofiled_ns"]), len(rank["profiled_ns"])
        )  # fmt: skip
        assert all(0 < wall < 60e9 for wall in rank["unprofiled_ns"] + rank["profiled_ns"])
        assert rank["threads"] >= 1


@pytest.mark.slow
@pytest.mark.spawn
def test_ddp_shows_its_buckets() -> None:
    """DDP's own logging data contains the buckets; other modes have none."""
    info = json.loads((recorded("ddp", 2) / "run.json").read_text())

    assert 1_462_538 * 4 == sum(map(int, info["ddp"]["rebuilt_bucket_sizes"].split(", ")))
    assert json.loads((recorded("naive", 2) / "run.json").read_text())["ddp"] is None
