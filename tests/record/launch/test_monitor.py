"""What a launcher does while a job runs, without the job."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dptrace.errors import UsageError
from dptrace.record.launch.monitor import Monitor, Stalled, request_window
from dptrace.record.launch.torchrun import Launch
from dptrace.record.messages import Writing, finish_path, heartbeat_path, request_path, window_folder, write_json
from dptrace.record.processes import Signals
from dptrace.record.run_folder import RunFolder
from tests.support.silent import SilentReporter

RUN_KEYS = ("model", "parameters", "options", "versions", "ddp", "memory", "node", "local_rank", "host", "device")
JOB = Launch(Path("r"), False, Path("train.py"), (), 2, None)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Begin a run whose monitor looks at every call."""
    monkeypatch.setattr("dptrace.record.launch.monitor._LOOK_S", 0)
    monkeypatch.setattr("dptrace.record.launch.monitor._FINISH_S", 0.1)
    folder = RunFolder(tmp_path / "r")
    folder.begin(force=False)
    return folder


def _beat(run: RunFolder, rank: int, done: int, recorded: int = 0) -> None:
    heartbeat_path(run.staging, rank).write_text(f"{done} 0 {recorded}")


def _write(run: RunFolder, rank: int, number: int = 1, recorded: int = 5) -> None:
    """Write a rank's part of a window of five steps."""
    folder = window_folder(run.staging, number)
    folder.mkdir(exist_ok=True)
    piece: dict[str, Any] = dict.fromkeys((*RUN_KEYS, "threads", "backend")) | {"losses": [], "notes": []}
    times: dict[str, Any] = {"unprofiled_ns": [], "profiled_ns": [7], "overhead_windows": []}
    schedule = {"wait": 0, "warmup": 3, "steps": 5}
    piece |= times | {"rank": rank, "world_size": 2, "recorded_steps": recorded, "schedule": schedule, "file": "x"}
    write_json(folder / f"rank{rank}.piece.json", piece)


def test_a_run_is_complete_when_all_ranks_have_written(run: RunFolder) -> None:
    """It gets its name at once, and the ranks are asked to measure the overhead."""
    reporter = SilentReporter()
    monitor = Monitor(JOB, run, reporter)
    for rank in (0, 1):
        _beat(run, rank, 8)
    _write(run, 0)
    monitor.poll(os.getpid())
    assert not run.path.exists()

    _write(run, 1)
    assert not monitor.poll(os.getpid())
    assert [(str(run.path), True)] == reporter.runs
    assert "complete" == json.loads((run.path / "run.json").read_text())["status"]
    assert {"kind": "overhead"} == json.loads(request_path(run.staging, 1).read_text())


def test_the_overhead_is_added_when_all_ranks_have_measured_it(run: RunFolder) -> None:
    """Only then does --stop end the training."""
    reporter = SilentReporter()
    monitor = Monitor(replace(JOB, stop=True), run, reporter)
    windows = [{"profiled": False, "step_ns": [100]}, {"profiled": True, "step_ns": [125]}]
    for rank in (0, 1):
        _beat(run, rank, 8)
        _write(run, rank)
    assert not monitor.poll(os.getpid())
    for rank in (0, 1):
        entry = {"rank": rank, "unprofiled_ns": [100], "overhead_windows": windows}
        write_json(run.staging / f"rank{rank}.overhead.json", entry)

    assert monitor.poll(os.getpid())
    assert [0.25] == reporter.overheads
    assert 0.25 == json.loads((run.path / "run.json").read_text())["profiler_overhead"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_at_the_end_of_the_training_is_no_run_of_a_job_that_goes_on(run: RunFolder, fails: bool) -> None:
    """Ctrl-C is then not mentioned, and no overhead is asked for; a rank reports its failure before the run has its
    name."""
    reporter = SilentReporter()
    monitor = Monitor(JOB, run, reporter)
    for rank in (0, 1):
        _beat(run, rank, 8, recorded=0 if fails else -1)
        _write(run, rank)
    if fails:
        failure = {"rank": 1, "time_ns": time.time_ns(), "message": "ValueError: broken", "of_recorder": False}
        write_json(run.staging / "rank1.failure.json", failure)
    monitor.poll(os.getpid())

    assert [(str(run.path), False)] == reporter.runs
    assert fails or not request_path(run.staging, 1).exists()


def test_with_stop_the_machines_that_share_a_folder_end_together(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine 0 decides; the others see it before their ranks lose the connection."""
    monkeypatch.setattr("dptrace.record.launch.monitor._OTHERS_LOOK_S", 0)
    job = replace(JOB, stop=True, nnodes=2, use_script_profiler=True)
    first, second = (Monitor(replace(job, node_rank=rank), run, SilentReporter()) for rank in (0, 1))
    assert not second.poll(os.getpid())
    for rank in (0, 1):
        _write(run, rank)

    assert first.poll(os.getpid())
    assert second.poll(os.getpid())


def test_what_a_failure_has_left_is_no_complete_run(run: RunFolder) -> None:
    """A window that was cut short by a failure is not complete; one that had all its steps is."""
    monitor = Monitor(JOB, run, SilentReporter())
    write_json(run.staging / "rank1.failure.json", {"rank": 1, "time_ns": 1, "message": "x", "attempt": 0})
    for rank in (0, 1):
        _write(run, rank, recorded=4)
    monitor.poll(os.getpid())
    assert [] == monitor.runs

    for rank in (0, 1):
        _write(run, rank)
    monitor.poll(os.getpid())
    assert 1 == len(monitor.runs)


def test_a_trigger_file_and_attach_ask_for_a_window(run: RunFolder, tmp_path: Path) -> None:
    """The files are deleted, so that they can be written again."""
    monitor = Monitor(replace(JOB, trigger=str(tmp_path / "now")), run, SilentReporter())
    (tmp_path / "now").touch()
    monitor.poll(os.getpid())
    assert not (tmp_path / "now").exists()
    request_window(run)
    monitor.poll(os.getpid())
    monitor.poll(os.getpid())

    asked = [json.loads(path.read_text())["kind"] for path in sorted(run.staging.glob("request-*.json"))]
    assert ["record", "record"] == asked


def test_a_signal_asks_for_a_window(run: RunFolder) -> None:
    """The handler that was there before is restored."""
    before = signal.getsignal(signal.SIGUSR2)
    monitor = Monitor(replace(JOB, trigger="SIGUSR2"), run, SilentReporter())
    with monitor.trigger_signal():
        os.kill(os.getpid(), signal.SIGUSR2)
        monitor.poll(os.getpid())

    assert request_path(run.staging, 1).exists()
    assert before == signal.getsignal(signal.SIGUSR2)


def test_attaching_to_nothing_is_refused(tmp_path: Path, run: RunFolder) -> None:
    """No job, or a trainer of dptrace, which ends when it is recorded."""
    Monitor(replace(JOB, mode="ddp"), run, SilentReporter())
    for path in (run.path, tmp_path / "none"):
        with pytest.raises(UsageError, match=path.name):
            request_window(RunFolder(path))


def test_a_rank_without_a_step_for_too_long_stalls_the_job(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of all ranks are part of the error; a recorded job may take as long as it likes."""
    now = [0.0]
    monkeypatch.setattr("dptrace.record.launch.monitor.time", SimpleNamespace(monotonic=lambda: now[0]))
    monitor = Monitor(replace(JOB, timeout_s=60.0), run, SilentReporter())
    for seconds, done in ((1, 1), (50, 2), (109, 2)):
        now[0] = seconds
        _beat(run, 0, seconds)
        _beat(run, 1, done)
        monitor.poll(os.getpid())
    now[0] = 111
    _beat(run, 0, 111)
    with pytest.raises(Stalled) as stalled:
        monitor.poll(os.getpid())

    text = str(stalled.value)
    assert all(words in text for words in ("rank 0", "step 111", "rank 1", "step 2"))


def test_a_script_without_a_limit_goes_on_and_where_it_stands_is_said_once(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may evaluate for an hour; a trainer of dptrace has nothing that takes so long, and hangs."""
    now, reporter = [0.0], SilentReporter()
    monkeypatch.setattr("dptrace.record.launch.monitor.time", SimpleNamespace(monotonic=lambda: now[0]))
    script, trainer = Monitor(JOB, run, reporter), Monitor(replace(JOB, mode="ddp"), run, SilentReporter())
    _beat(run, 0, 2)
    for seconds in (1, 1900, 2000, 4000):
        now[0] = seconds
        script.poll(os.getpid())

    (text,) = [message for message in reporter.messages if "goes on" in message]
    assert all(words in text for words in ("rank 0", "step 2", "--timeout"))
    now[0] = 5000
    trainer.poll(os.getpid())
    now[0] = 7000
    with pytest.raises(Stalled):
        trainer.poll(os.getpid())


def test_a_terminal_is_told_what_the_job_does(run: RunFolder) -> None:
    """From the wait for the first step to the writing of the traces, once each."""
    reporter = SilentReporter()
    monitor = Monitor(JOB, run, reporter)
    monitor.poll(os.getpid())
    for recorded, asked in ((0, 0), (2, 5), (3, 5)):
        for rank in (0, 1):
            heartbeat_path(run.staging, rank).write_text(f"4 0 {recorded} {asked}")
        monitor.poll(os.getpid())
    with Writing(run.staging, 0).ended_elsewhere():
        monitor.poll(os.getpid())

    assert 4 == len(reporter.states)
    assert "2 of 5 steps" in reporter.states[2]
    assert "1 rank" in reporter.states[3]


def test_a_long_step_and_a_rank_that_writes_are_waited_for(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 30 s, and a rank that writes for a minute after that: until its file is there, or it has ended."""
    now = [0.0]
    writing = Writing(run.staging, 0)
    block = writing.ended_elsewhere()

    def sleep(seconds: float) -> None:
        now[0] += 1
        if now[0] == 85:
            block.__enter__()
        if now[0] == 150:
            _write(run, 0, recorded=2)
            _write(run, 1, recorded=2)
            writing.end()

    clock = SimpleNamespace(monotonic=lambda: now[0], time_ns=lambda: 0, sleep=sleep)
    monkeypatch.setattr("dptrace.record.launch.monitor.time", clock)
    monkeypatch.setattr("dptrace.record.launch.monitor._FINISH_S", 15.0)
    reporter = SilentReporter()
    monitor = Monitor(JOB, run, reporter)
    for done, seconds in ((3, 0), (4, 30), (5, 60)):
        now[0] = seconds
        for rank in (0, 1):
            _beat(run, rank, done, recorded=max(done - 3, 0))
        monitor.poll(os.getpid())
    write_json(run.staging / "rank1.failure.json", {"rank": 1, "time_ns": 1, "message": "143", "attempt": 0})
    monitor.finish_window(Signals())

    assert 150 == now[0]
    assert [str(run.path)] == [folder for folder, _ in reporter.runs]
    assert ["waiting for the step", "writing the traces of 1 rank"] == [
        text.removeprefix("Interrupted: ")[: len(start)]
        for text, start in zip(
            reporter.messages, ("waiting for the step", "writing the traces of 1 rank"), strict=False
        )
    ]


@pytest.mark.heavy
def test_an_interrupted_window_is_asked_to_end(run: RunFolder) -> None:
    """Ranks that record are asked to finish; ranks that do not are not waited for."""
    monitor = Monitor(JOB, run, SilentReporter())
    _beat(run, 0, 2)
    began = time.monotonic()
    monitor.finish_window(Signals())
    assert time.monotonic() - began < 10

    _beat(run, 0, 5, recorded=2)
    monitor.finish_window(Signals())
    assert finish_path(run.staging).exists()
