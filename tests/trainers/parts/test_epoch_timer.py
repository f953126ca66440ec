"""Timing epochs without the profiler, and the line of results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dptrace.record.options.modes import trainer
from tests.support.forking import run_python
from tests.support.recordings import environment

torch = pytest.importorskip("torch")


def test_notes_of_a_trainer_may_be_tensors() -> None:
    """Such as an expert's load; and what a trainer counts itself holds, as of a model that no rank has whole."""
    from dptrace.trainers.parts.epoch_timer import EpochTimer

    timing = EpochTimer(1, 1, 0, torch.nn.Linear(2, 1), {"expert_load": torch.tensor([1, 2])})
    timing.parameters = 99

    assert ([1, 2], 99) == (timing.metadata()["expert_load"], timing.metadata()["parameters"])
    json.dumps(timing.metadata())


class Ticks:
    """A clock on which a step takes as many seconds as it is told."""

    def __init__(self, seconds: list[int]) -> None:
        self.seconds = seconds

    def begin(self) -> None:
        """Do nothing: laps are known."""

    def end(self) -> int:
        return self.seconds.pop(0) * 1_000_000_000

    def durations_ns(self, laps: list[int]) -> list[int]:
        return laps


def timed(timer: Any, seconds: list[int]) -> None:
    timer.stopwatch = Ticks(list(seconds))
    with timer:
        for number, _ in enumerate(seconds):
            timer.step(float(number))


def test_each_epoch_prints_a_line_when_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """After the warm-up; with what is evaluated then, and the results of all at the end."""
    from dptrace.trainers.parts.epoch_timer import EpochTimer

    timer = EpochTimer(2, 2, 1, None, {"batch_size": 10})
    timer.at_epoch_end = lambda: {"accuracy": 0.5, "validation_loss": 2.0}
    kept: list[int] = []
    timer.keep_epochs = lambda epochs: kept.append(len(epochs))
    timed(timer, [99, 2, 3, 4, 6])
    *lines, last = capsys.readouterr().out.splitlines()
    first, second = (json.loads(line.removeprefix("EPOCH_JSON:")) for line in lines)
    found = json.loads(last.removeprefix("RESULTS_JSON:"))

    assert {"epoch": 1, "epochs": 2, "seconds": 5.0, "samples_per_s": 4.0, "step_p50_s": 2.5, "loss": 1.5} | {
        "accuracy": 0.5,
        "validation_loss": 2.0,
    } == first
    assert (2, 10.0, 3.5) == (second["epoch"], second["seconds"], second["loss"])
    assert ([5.0, 10.0], [2.0, 3.0, 4.0, 6.0], [1.0, 2.0, 3.0, 4.0]) == (
        found["epoch_s"],
        found["step_s"],
        found["losses"],
    )
    assert ([0.5, 0.5], [2.5, 5.0], [1, 2]) == (found["accuracy"], found["epoch_step_p50_s"], kept)


def test_a_training_that_continues_counts_its_first_steps_as_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """The epochs before it are among the results, though another process has timed them."""
    from dptrace.trainers.parts.epoch_timer import EpochTimer

    before = {"seconds": 8.0, "step_s": [2.0] * 4, "losses": [9.0] * 4, "local_losses": [9.0] * 4}
    timed(EpochTimer(2, 4, 2, None, {"batch_size": 10}, [before]), [50, 50, 3, 5])
    found = json.loads(capsys.readouterr().out.splitlines()[-1].removeprefix("RESULTS_JSON:"))

    assert ([8.0, 16.0], [2.0, 2.0, 2.0, 2.0, 3.0, 5.0]) == (found["epoch_s"], found["step_s"])
    assert [9.0] * 4 + [0.0, 1.0, 2.0, 3.0] == found["losses"]


@pytest.mark.slow
@pytest.mark.spawn
def test_every_trainer_prints_one_line_of_results() -> None:
    """Started by torchrun with --epochs, rank 0 prints it, and nothing is recorded."""
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(trainer("naive"))]
    arguments = ["--model", "small", "--epochs", "2", "--batch-size", "16384", "--warmup", "2"]
    done = run_python(*start, *arguments, env=environment())
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULTS_JSON:")]

    assert done.returncode == 0, done.stderr
    (line,) = lines
    found = json.loads(line.removeprefix("RESULTS_JSON:"))
    assert ("naive", "small", 2, 1_462_538) == (found["mode"], found["model"], found["gpus"], found["parameters"])
    assert (2, 2, 4, 4) == (len(found["epoch_s"]), found["steps_per_epoch"], len(found["losses"]), len(found["step_s"]))
    assert all(seconds > 0 for seconds in found["epoch_s"])
    assert found["avg_epoch_s"] * found["samples_per_s"] == pytest.approx(32_768)
