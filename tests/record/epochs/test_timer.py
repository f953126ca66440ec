"""Timing epochs without the profiler, and the line of results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dptrace.record.options.modes import trainer
from tests.support.forking import run_python
from tests.support.recordings import environment

torch = pytest.importorskip("torch")


def of(laps: list[int], losses: list[float]) -> dict[str, Any]:
    return {"laps": laps, "losses": losses}


def test_an_epoch_takes_as_long_as_its_slowest_rank() -> None:
    """Two epochs of two steps on two ranks; throughput is the samples of all ranks over the mean epoch."""
    from dptrace.record.epoch_timer import results

    second = 1_000_000_000
    ranks = [of([second, second, second, second], [1, 2, 3, 4]), of([second, 2 * second, second, 0], [3, 4, 5, 6])]
    found = results(ranks, {"batch_size": 100, "mode": "naive"}, 2, 2)

    assert [3.0, 2.0] == found["epoch_s"]
    assert [1.0, 2.0, 1.0, 1.0] == found["step_s"]
    assert 2.5 == found["avg_epoch_s"]
    assert 80.0 == found["samples_per_s"]
    assert [2.0, 3.0, 4.0, 5.0] == found["losses"]
    assert [1, 2, 3, 4] == found["local_losses"]
    assert "naive" == found["mode"]


def test_losses_that_are_not_finite_are_told_as_nothing() -> None:
    """JSON has no NaN."""
    from dptrace.record.epoch_timer import results

    found = results([of([1], [float("nan")])], {"batch_size": 1}, 1, 1)
    assert [None] == found["losses"] == found["local_losses"]


def test_notes_of_a_trainer_may_be_tensors() -> None:
    """Such as an expert's load; and what a trainer counts itself holds, as of a model that no rank has whole."""
    from dptrace.record.epoch_timer import EpochTimer

    timing = EpochTimer(1, 1, 0, torch.nn.Linear(2, 1), {"expert_load": torch.tensor([1, 2])})
    timing.parameters = 99

    assert ([1, 2], 99) == (timing.metadata()["expert_load"], timing.metadata()["parameters"])
    json.dumps(timing.metadata())


def test_accuracy_is_among_the_results_where_there_is_validation() -> None:
    """Of the images that the model classifies rightly; other models, and recordings, have none."""
    from types import SimpleNamespace

    from dptrace.record.epoch_timer import EpochTimer
    from dptrace.trainers.parts.task import Task

    class Four:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, rows: slice) -> tuple[Any, Any]:
            return torch.eye(4)[rows], torch.tensor([0, 1, 2, 0])[rows]

    model = torch.nn.Sequential(torch.nn.Identity())
    options: Any = SimpleNamespace(dtype="float32")
    world: Any = SimpleNamespace(rank=0, size=1, device=torch.device("cpu"))
    timing = EpochTimer(1, 1, 0, None, {})
    Task(model, Four(), options, world).validate(timing)
    assert {} == timing.extra_results

    Task(model, Four(), options, world, Four()).validate(timing)
    assert {"accuracy": 0.75} == timing.extra_results
    assert 0.75 == timing.metadata()["accuracy"]


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
