"""Jobs that go on for longer than what is recorded of them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.forking import start_python
from tests.support.processes import processes_in, wait_until
from tests.support.recordings import dptrace, environment

pytest.importorskip("torch")
pytestmark = [pytest.mark.spawn, pytest.mark.slow]

LONG = """
import os, sys, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
while not os.path.exists("end"):
    if step == 7 and "hang" in sys.argv and dist.get_rank() == 1:
        time.sleep(600)
    model(torch.ones(2, 8)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    time.sleep(0.01)
    step += 1
    # All ranks end in the same step.
    ended = torch.tensor(float(os.path.exists("end")))
    dist.all_reduce(ended, op=dist.ReduceOp.MAX)
    if ended:
        break
"""


class Job:
    """A recording in the background."""

    def __init__(self, folder: Path, *options: str, argument: str = "") -> None:
        self.folder = folder
        (folder / "train.py").write_text(LONG)
        self._log = (folder / "log").open("w")
        words = ["-m", "dptrace", "record", "--gpus", "2", "--warmup", "2", *options, "-o", "run", "train.py"]
        self.process = start_python(*words, *filter(None, [argument]), cwd=folder, stderr=self._log, env=environment())

    def wait_for(self, happened: Callable[[], bool]) -> None:
        wait_until(lambda: happened() or self.process.poll() is not None)
        assert self.process.poll() is None, self.said

    def ended(self) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(120)
        assert [] == processes_in(self.folder)
        assert not (self.folder / ".run.recording").exists()
        return code

    @property
    def said(self) -> str:
        return (self.folder / "log").read_text()

    def info(self, name: str = "run") -> dict[str, Any]:
        return dict(json.loads((self.folder / name / "run.json").read_text()))

    def close(self) -> None:
        (self.folder / "end").touch()
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        self._log.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Return a function that starts a job, which is ended after the test."""
    jobs: list[Job] = []

    def start_job(*options: str, argument: str = "") -> Job:
        jobs.append(Job(tmp_path, *options, argument=argument))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.close()


def _steps(info: dict[str, Any]) -> list[int]:
    return [rank["recorded_steps"] for rank in info["ranks"]]


def test_a_run_is_there_while_training_goes_on(start: Callable[..., Job]) -> None:
    """Its overhead follows; then Ctrl-C ends the training, and the run stays."""
    job = start("--steps", "3")
    job.wait_for((job.folder / "run" / "run.json").exists)
    assert [3, 3] == _steps(job.info())
    job.wait_for(lambda: job.info()["profiler_overhead_range"] is not None)
    assert all(5 == len(rank["overhead_windows"]) for rank in job.info()["ranks"])

    job.process.send_signal(signal.SIGINT)
    assert 130 == job.ended()
    assert "dptrace analyze run" in job.said.split("Interrupted")[-1]
    assert "complete" == job.info()["status"]


def test_runs_are_recorded_on_demand(start: Callable[..., Job]) -> None:
    """Nothing is recorded before the file appears; --attach asks for one more."""
    job = start("--steps", "2", "--trigger", "now")
    steps = job.folder / ".run.recording" / "rank0.steps"
    job.wait_for(lambda: steps.exists() and int((steps.read_text().split() or ["0"])[0]) > 20)
    assert not (job.folder / "run").exists()
    (job.folder / "now").touch()
    job.wait_for((job.folder / "run" / "run.json").exists)
    dptrace("record", "--attach", "run", cwd=job.folder)
    job.wait_for((job.folder / "run-2" / "run.json").exists)
    (job.folder / "end").touch()

    assert 0 == job.ended()
    assert [[2, 2], [2, 2]] == [_steps(job.info(name)) for name in ("run", "run-2")]
    assert job.info()["schedule"]["wait"] > 20
    assert job.info("run-2")["schedule"]["wait"] > job.info()["schedule"]["wait"]


def test_several_runs_of_a_job_end_it_if_asked(start: Callable[..., Job]) -> None:
    """--stop ends the training after the last one, without an error."""
    job = start("--steps", "2", "--repeat", "2", "--every", "40", "--stop", "--light")

    assert 0 == job.ended()
    assert [0, 40] == [job.info(name)["schedule"]["wait"] for name in ("run", "run-2")]
    assert not (job.folder / "run-3").exists()


def test_seconds_are_recorded_instead_of_steps(start: Callable[..., Job]) -> None:
    """All ranks record the same number of steps, about as many as fit."""
    job = start("--duration", "0.5", "--stop")

    assert 0 == job.ended()
    assert 1 == len(set(_steps(job.info())))
    assert 1 < _steps(job.info())[0] <= 50


def test_a_hang_is_described_and_ended(start: Callable[..., Job]) -> None:
    """The message says at which line each rank is, and what it calls; what was recorded is kept."""
    job = start("--steps", "1000", "--timeout", "15", argument="hang")

    assert 1 == job.ended()
    assert "rank 0 at train.py:" in job.said
    assert "(in all_reduce)" in job.said
    assert "time.sleep(600)" in job.said
