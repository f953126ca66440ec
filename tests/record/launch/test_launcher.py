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
    if how == "hang" and rank == 1 and step == 8:
        open("hanging", "w").close()
        time.sleep(600)
    model(torch.ones(2, 8)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
# A rank that torchrun ends while it writes leaves no whole run.
for _ in range(1200):
    if os.path.exists("runs/train"):
        break
    time.sleep(0.05)
if how == "late" and rank == 1:
    raise ValueError("boom after the recording")
if how == "drift":
    from dptrace.record import assert_in_sync
    with torch.no_grad():
        model.bias[0] += rank
    assert_in_sync(model)
"""
OPTIONS = ("-q", "--gpus", "2", "--warmup", "2")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Write a script whose rank 1 does what its argument says."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("late", "Rank 1 died: ValueError: boom after the recording"),
        ("drift", "The replicas drifted apart: parameter bias differs by 1 between ranks."),
    ],
)
def test_a_run_that_was_recorded_survives_the_failure_of_its_training(script: Path, how: str, says: str) -> None:
    """It stays complete under its name; the error says what failed, and names the run."""
    done = dptrace("record", *OPTIONS, "--steps", "3", script.name, how, cwd=script.parent, ok=False)

    assert (1, True, True) == (done.returncode, says in done.stderr, "complete: runs/train." in done.stderr), (
        done.stderr
    )
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
    words = ["-m", "dptrace", "record", *OPTIONS, "--steps", "30", script.name, "hang"]
    with (script.parent / "errors").open("w") as errors:
        about: dict[str, Any] = {"cwd": script.parent, "stderr": errors, "text": True, "env": environment()}
        if number == signal.SIGKILL:  # a real start
            launcher = subprocess.Popen([sys.executable, *words], **about)
        else:
            launcher = start_python(*words, **about)
    wait_until((script.parent / "hanging").exists)
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
