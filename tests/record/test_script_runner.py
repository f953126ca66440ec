"""Counting the steps of a script that was not changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dptrace.record.launch.messages import LauncherSettings

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, which differ from version to version


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Assign a launcher's folder to this process, for one recorded step after two of warm-up."""
    assignment = LauncherSettings(str(tmp_path), "runs/x", steps=1, warmup=2, wait=0)
    for name, value in assignment.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("dptrace.record.recording._latest", None)
    monkeypatch.setattr("dptrace.record.output.end_with_parent", lambda signal: None)
    return tmp_path


def _optimizers(count: int) -> list[Any]:
    return [torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=0.1) for _ in range(count)]


def _piece(folder: Path) -> dict[str, object]:
    piece: dict[str, object] = json.loads((folder / "rank0.piece.json").read_text())
    return piece


def test_several_optimizers_in_a_loop_count_once(folder: Path) -> None:
    """The first optimizer step starts the count; each further one of the same optimizer ends a step."""
    from dptrace.record.script_runner import OptimizerSteps

    steps = OptimizerSteps()
    generator, critic = _optimizers(2)
    for _ in range(3):
        steps(generator, (), {})
        steps(critic, (), {})
        assert not (folder / "rank0.piece.json").exists()
    steps(generator, (), {})
    steps.close(None)

    assert (1, 3) == (_piece(folder)["recorded_steps"], _piece(folder)["parameters"])
    assert [] == _piece(folder)["notes"]


def test_an_optimizer_that_is_given_up_hands_over_to_the_next(folder: Path) -> None:
    """The steps of a script that continues with a new optimizer are counted further."""
    from dptrace.record.script_runner import OptimizerSteps

    steps = OptimizerSteps()
    optimizers = _optimizers(2)
    steps(optimizers[0], (), {})
    del optimizers[0]
    for _ in range(3):
        steps(optimizers[0], (), {})
    steps.close(None)

    assert 1 == _piece(folder)["recorded_steps"]


def test_a_script_that_records_itself_is_left_to_it(folder: Path) -> None:
    """Optimizer steps inside a script's own record() are not counted a second time."""
    from dptrace.record import record
    from dptrace.record.script_runner import OptimizerSteps

    steps, (optimizer,) = OptimizerSteps(), _optimizers(1)
    with record("elsewhere", steps=7, warmup=5) as recording:
        for _ in range(2):
            steps(optimizer, (), {})
        assert 0 == recording.steps_done
        assert 3 == recording.total_steps
        for _ in range(3):
            recording.step()
    steps(optimizer, (), {})
    steps.close(None)

    assert (1, []) == (_piece(folder)["recorded_steps"], _piece(folder)["notes"])


def test_a_failure_is_told_before_anything_else(folder: Path) -> None:
    """The failure message is written even if nothing was recorded."""
    from dptrace.record.script_runner import OptimizerSteps

    OptimizerSteps().close(ValueError("boom"))

    message = json.loads((folder / "rank0.failure.json").read_text())
    assert ("ValueError: boom", False, 1) == (message["message"], message["advice"], message["exit_code"])


def test_a_rank_that_failed_ends_whatever_its_recording_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Even if closing the recording fails, the rank ends without its exit handlers, which could hang."""
    from dptrace.record import script_runner

    class Left(BaseException):
        pass

    def leave(code: int) -> None:
        raise Left(code)

    def fail(self: object, error: BaseException | None) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr(script_runner, "exit_now", leave)
    monkeypatch.setattr(script_runner.OptimizerSteps, "close", fail)
    (tmp_path / "train.py").write_text("raise ValueError")

    with pytest.raises(Left, match="1"):
        script_runner._run(str(tmp_path / "train.py"), script_runner.OptimizerSteps())


FORKING = """
import os, sys, torch

def fork():
    if os.fork() == 0:
        sys.exit(0)
    os.wait()

fork()
parameter = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([parameter], lr=0.1)
for step in range(6):
    parameter.sum().backward()
    optimizer.step()
    if step == 3:
        fork()
fork()
"""


@pytest.mark.slow
@pytest.mark.spawn
def test_a_child_that_the_script_forks_leaves_the_recording_alone(tmp_path: Path) -> None:
    """The end of the child is not the end of the script: the recording is complete."""
    (tmp_path / "forks.py").write_text(FORKING)
    options = ["--gpus", "1", "--steps", "2", "--warmup", "2", "--wait", "0", "--out", "run"]
    command = [sys.executable, "-m", "dptrace", "record", *options, "forks.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)

    assert 0 == ended.returncode, ended.stderr
    assert "complete" == json.loads((tmp_path / "run" / "run.json").read_text())["status"]
