"""The launcher starts ranks and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.forking import start_python
from tests.support.processes import processes_in, wait_until
from tests.support.recordings import dptrace, environment
from tests.support.silent import SilentReporter

pytest.importorskip("torch")
pytestmark = pytest.mark.spawn

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(1)
rank, how = dist.get_rank(), sys.argv[1]
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    if rank == 1 and step == 8:
        while how == "late" and not os.path.exists("runs/train"):
            time.sleep(0.05)
        open("dying", "w").close()
        if how == "late":
            raise ValueError("boom after the recording")
        if how == "hang":
            time.sleep(600)
    model(torch.ones(2, 8)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
if how == "drift":
    from dptrace.record import assert_in_sync
    # A rank that torchrun ends while it writes leaves no whole run.
    for _ in range(1200):
        if os.path.exists("runs/train"):
            break
        time.sleep(0.05)
    with torch.no_grad():
        model.bias[0] += rank
    assert_in_sync(model)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Write a script whose rank 1 does in step 8 what its argument says."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def _start(script: Path, how: str, steps: int = 30, forked: bool = True) -> subprocess.Popen[str]:
    options = ["--gpus", "2", "--warmup", "2", "--steps", str(steps)]
    words = ["-m", "dptrace", "record", "-q", *options, script.name, how]
    with (script.parent / "errors").open("w") as errors:
        about: dict[str, Any] = {"cwd": script.parent, "stderr": errors, "text": True, "env": environment()}
        return start_python(*words, **about) if forked else subprocess.Popen([sys.executable, *words], **about)


@pytest.mark.slow
def test_a_run_that_was_recorded_survives_the_death_of_its_training(script: Path) -> None:
    """It stays complete under its name; the error names the rank, and the run."""
    launcher = _start(script, "late", steps=3)
    assert 1 == launcher.wait(120)

    errors = (script.parent / "errors").read_text()
    assert "Rank 1 died: ValueError: boom after the recording" in errors
    assert "runs/train." in errors
    info = json.loads((script.parent / "runs" / "train" / "run.json").read_text())
    assert ("complete", [3, 3]) == (info["status"], [rank["recorded_steps"] for rank in info["ranks"]])
    assert [] == processes_in(script.parent)


@pytest.mark.parametrize(("device", "may"), [("nvidia0", True), ("kfd", True), ("dxg", True), ("null", False)])
def test_torch_is_asked_for_gpus_only_where_there_may_be_one(device: str, may: bool, tmp_path: Path) -> None:
    """NVIDIA's, AMD's and Windows' devices are known by their names."""
    from dptrace.record.launch.launcher import _may_have_gpu

    (tmp_path / device).touch()

    assert may == _may_have_gpu(tmp_path) or sys.platform != "linux"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_launcher_leaves_no_process(script: Path, number: signal.Signals) -> None:
    """Nor a hidden folder; even after SIGKILL no process stays."""
    launcher = _start(script, "hang", forked=number != signal.SIGKILL)
    wait_until((script.parent / "dying").exists)
    assert 4 == len(processes_in(script.parent))
    launcher.send_signal(number)
    if number != signal.SIGKILL:  # a second time: the ranks are not waited for
        wait_until((script.parent / "runs" / ".train.recording" / "finish").exists)
        launcher.send_signal(number)
    code = launcher.wait(60)

    wait_until(lambda: not processes_in(script.parent), 60)
    if number != signal.SIGKILL:
        assert 128 + number == code
        assert "Interrupted" in (script.parent / "errors").read_text()
        # Ranks that hang in a recorded step may write the steps before it when they are ended.
        assert 1 >= len(os.listdir(script.parent / "runs"))
        assert set(os.listdir(script.parent / "runs")) <= {"train", "train.failed"}


@pytest.mark.slow
def test_replicas_that_drift_apart_are_reported(script: Path) -> None:
    """assert_in_sync names the parameter and how far apart it is; the recording made before it is kept."""
    options = ("-q", "--gpus", "2", "--steps", "3", "--warmup", "2")
    done = dptrace("record", *options, script.name, "drift", cwd=script.parent, ok=False)

    assert 1 == done.returncode
    assert "The replicas drifted apart: parameter bias differs by 1 between ranks." in done.stderr
    assert "complete: runs/train." in done.stderr
    assert (script.parent / "runs" / "train" / "rank1.pt.trace.json.gz").exists()


def test_a_failure_after_a_restart_names_it_and_the_checkpoints(tmp_path: Path) -> None:
    """The ranks were restarted after the first kill; the second ended the run; run.json contains both."""
    from dptrace.errors import RecordingError
    from dptrace.record.launch import launcher as launch
    from dptrace.record.launch.monitor import Monitor
    from dptrace.record.launch.torchrun import Launch
    from dptrace.record.run_folder import RunFolder

    run = RunFolder(tmp_path / "r")
    run.begin(force=False)
    killed = [{"rank": 0, "exit_code": -9}]
    (run.staging / "agent0.json").write_text(json.dumps(killed))
    (run.staging / "restarts.agent0.json").write_text(json.dumps([{"attempt": 0, "time_ns": 5, "exits": killed}]))
    (run.staging / "rank1.log").write_text("said\n")
    (tmp_path / "step-00000005").write_text("")
    job = Launch(tmp_path / "r", False, Path("ddp.py"), (), 2, "ddp", checkpoints=tmp_path)
    with pytest.raises(RecordingError) as error:
        launch._finish_job(Monitor(job, run, SilentReporter()), 1)

    assert str(error.value).startswith("Rank 0 was ended by SIGKILL (out of memory?), after 1 restart.")
    assert f"The checkpoints in {tmp_path} stay, the last of step 5" in str(error.value)
    info = json.loads((tmp_path / "r.failed" / "run.json").read_text())
    assert (1, 0) == (len(info["restarts"]), info["restarts"][0]["rank"])
