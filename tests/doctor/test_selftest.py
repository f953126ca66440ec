"""The self-test: a real recording on CPU, and stand-ins for what goes wrong on GPUs."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dptrace.doctor import selftest as module
from dptrace.doctor.selftest import check_recording, check_trace_folder, recording_command, selftest
from dptrace.doctor.verdict import RecordedRun
from tests.support.real_traces import needs_real_traces, real
from tests.support.selftests import gpu_timelines, recorded


@pytest.mark.spawn
@pytest.mark.slow
def test_this_machine_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On CPU, two ranks are recorded, nothing is wrong, and nothing is left."""
    pytest.importorskip("torch", reason="recording needs torch")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    test = selftest(0)

    assert test.works, test.verdicts
    assert {"ranks", "steps", "operators", "phases", "metadata", "clocks"} <= {v.what for v in test.verdicts}
    assert "" == test.kept
    assert [] == list(tmp_path.glob("dptrace*"))


def test_a_failed_recording_is_kept_and_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last lines of what it printed are shown, and the folder stays."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(module, "recording_command", lambda gpus: ("record", "--mode", "nonsense"))

    test = selftest(0)

    assert not test.works
    assert "nonsense" in test.verdicts[0].why
    assert (Path(test.kept) / "log").exists()


def test_a_hanging_recording_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A recording that never ends is stopped and reported."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.1)

    test = selftest(2)

    assert "wrong" == test.verdicts[0].level
    assert "NCCL" in test.verdicts[0].why


def test_an_interrupted_recording_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C ends the recording, waits until it has ended, and removes its folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "scratch").mkdir()
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
    started: list[subprocess.Popen[bytes]] = []
    wait = subprocess.Popen.wait

    def interrupted(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        started.append(process)
        if timeout == module._TIMEOUT_S:
            raise KeyboardInterrupt
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        selftest(0)

    assert started[0].returncode is not None
    assert [] == list((tmp_path / "scratch").iterdir())


def test_the_command_fits_the_machine() -> None:
    """One GPU records a single process; more record two ranks, as the CPU does."""
    assert "single" in recording_command(1)
    assert "--gpus" not in recording_command(1)
    assert recording_command(8) == recording_command(0)
    assert "ddp" in recording_command(0)


def test_a_single_gpu_is_not_asked_for_collectives() -> None:
    """With one rank, checks of collectives do not apply; with two they do."""
    single = RecordedRun(recorded(gpu_timelines(1)).run, ranks=1, steps=3, on_gpus=True)

    assert "launches" in {verdict.what for verdict in check_recording(single)}
    assert "metadata" not in {verdict.what for verdict in check_recording(single)}
    assert "metadata" in {verdict.what for verdict in check_recording(recorded())}


@needs_real_traces
def test_calls_to_cuda_without_kernels_are_explained(tmp_path: Path) -> None:
    """A real trace of a machine where CUPTI did not work: the error in the log decides what to do."""
    shutil.copy(real("odd/cuda_calls_but_no_kernels.json.gz"), tmp_path / "rank0.pt.trace.json.gz")
    log = "init.cpp:155] function cbapi->getCuptiStatus() failed with error CUPTI_ERROR_NOT_INITIALIZED (15)"

    (verdict,) = check_trace_folder(tmp_path, 1, log)

    assert ("kernels", "wrong") == (verdict.what, verdict.level)
    assert "driver" in verdict.why


@needs_real_traces
def test_a_gpu_that_left_no_event_is_explained(tmp_path: Path) -> None:
    """A real trace of an A100 whose kernels and CUDA calls are both missing: it can be read, as the CPU's."""
    shutil.copy(real("odd/distributed_info_not_found.json.gz"), tmp_path / "rank0.pt.trace.json.gz")

    verdicts = {verdict.what: verdict for verdict in check_trace_folder(tmp_path, 1)}

    assert "wrong" == verdicts["kernels"].level
    assert "phases" not in verdicts


@pytest.mark.heavy
@needs_real_traces
def test_removed_metadata_are_noticed(tmp_path: Path) -> None:
    """An A100's trace passes the check of metadata until its collectives lose their arguments."""
    with gzip.open(next(Path(real("ddp_a100_rank0of2")).glob("*.gz")), "rt") as file:
        document = json.load(file)

    def metadata() -> str:
        (tmp_path / "rank0.pt.trace.json").write_text(json.dumps(document))
        return {verdict.what: verdict.level for verdict in check_trace_folder(tmp_path, 2)}["metadata"]

    assert "ok" == metadata()
    for event in document["traceEvents"]:
        for key in [key for key in event.get("args", {}) if key in KEYS]:
            del event["args"][key]
    assert "wrong" == metadata()


KEYS = ("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Ranks")


def test_an_unreadable_recording_is_reported(tmp_path: Path) -> None:
    """A folder without a trace is one verdict, without a traceback."""
    (verdict,) = check_trace_folder(tmp_path, 2)

    assert ("reading", "wrong") == (verdict.what, verdict.level)
