"""Timed epochs: their results, the lines that they print, evaluation after each, and the latency of inference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dptrace.errors import DptraceError, UsageError
from dptrace.trainers.parts.epoch_results import epoch_line, epoch_result, epoch_text, epochs_before, results
from tests.support.cifar10_files import write_binary

torch = pytest.importorskip("torch")

from dptrace.record import World, parse_options  # noqa: E402
from dptrace.trainers import single  # noqa: E402
from dptrace.trainers.parts import models  # noqa: E402
from dptrace.trainers.parts.epoch_timer import EpochTimer, inference_latency  # noqa: E402
from dptrace.trainers.parts.task import loss_and_accuracy  # noqa: E402


class Slow(torch.nn.Module):  # type: ignore[name-defined,misc]
    """A model that takes a second for a batch and one for each image, ten times that in its first runs."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.runs = 0.0, 0
        self.batches: list[Any] = []

    def forward(self, x: Any) -> Any:
        self.runs += 1
        self.batches.append((self.training, tuple(x[:, 0].tolist())))
        self.now += (1 + len(x)) * (10 if len(self.batches) <= 3 else 1)
        return x


def test_an_image_takes_its_share_of_its_batch() -> None:
    """Without the warm-up, in evaluation; few images are repeated to fill a batch."""
    model = Slow()
    one, three = inference_latency(model, torch.tensor([[1.0], [2.0]]), [1, 3], lambda: model.now)

    assert (1, 10, 2.0, 2.0, 2.0, 0.5) == tuple(
        one[name] for name in ("batch_size", "runs", "p50_s", "p95_s", "sample_p50_s", "samples_per_s")
    )
    assert (3, 4.0, pytest.approx(4 / 3), pytest.approx(4 / 3)) == tuple(
        three[name] for name in ("batch_size", "p50_s", "sample_p50_s", "sample_p95_s")
    )
    assert {(False, (1.0,)), (False, (1.0, 2.0, 1.0))} == set(model.batches)
    assert model.training
    assert torch.get_num_threads() == one["threads"]


# Loss and accuracy of a model, and what they leave as it was.


def test_loss_and_accuracy_are_those_of_the_samples() -> None:
    """Three of four equal scores name another class; the loss of equal scores is the logarithm of their number."""
    scores, classes = [[0.0, 0.0]] * 300 + [[9.0, 0.0]], [0] * 75 + [1] * 225 + [1]
    data = torch.utils.data.TensorDataset(torch.tensor(scores), torch.tensor(classes))
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2, eps=0), torch.nn.Identity())
    world = World(0, 1, torch.device("cpu"))
    loss, accuracy = loss_and_accuracy(model, data, 300, world, lambda x, y: (x, y))

    assert pytest.approx(0.6931, abs=1e-4) == loss
    assert 0.25 == accuracy
    assert (True, 0) == (model.training, int(model[0].num_batches_tracked))


# A timed training on CIFAR-10: evaluated after each epoch, continued from a checkpoint bit for bit.


@pytest.fixture
def folder(alone: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small CIFAR-10, a process group of one rank, and a small model in the place of ResNet-18."""

    def small() -> Any:
        layers = torch.nn.Conv2d(3, 4, 8, 8), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(64, 10)
        return torch.nn.Sequential(*layers)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "build_resnet", small)
    write_binary(tmp_path / "cifar")
    return tmp_path


def trained(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train, and return the results and the lines of the epochs."""
    common = ("--model", "resnet18", "--data", "cifar", "--batch-size", "4", "--warmup", "2")
    single.train(parse_options("", "single", [*common, *arguments]), World(0, 1, torch.device("cpu")))
    *lines, last = capsys.readouterr().out.splitlines()
    epochs = [json.loads(line.removeprefix("EPOCH_JSON:")) for line in lines]
    return json.loads(last.removeprefix("RESULTS_JSON:")), epochs


@pytest.mark.heavy
def test_an_epoch_is_as_long_as_the_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """20 images in batches of 4 are 5 steps, or 3 of the first 12; after each, loss and accuracy are measured."""
    found, epochs = trained(capsys, "--epochs", "2", "--inference", "1,8")
    fewer, _ = trained(capsys, "--epochs", "1", "--samples", "13")

    assert (5, 10, [1, 2]) == (found["steps_per_epoch"], len(found["step_s"]), [epoch["epoch"] for epoch in epochs])
    assert 3 == fewer["steps_per_epoch"]
    for name in ("validation_loss", "accuracy", "training_loss", "training_accuracy"):
        assert [epoch[name] for epoch in epochs] == found[name]
    assert all(0 <= share <= 1 for share in found["accuracy"] + found["training_accuracy"])
    assert [1, 8] == [one["batch_size"] for one in found["inference"]]
    assert all(0 < one["sample_p50_s"] <= one["sample_p95_s"] for one in found["inference"])


@pytest.mark.heavy
def test_it_continues_bit_for_bit_after_an_epoch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second epoch after a checkpoint ends with the parameters, losses and accuracies of two epochs at once."""
    kept = ("--checkpoint-every", "1", "--checkpoints")
    whole, _ = trained(capsys, "--epochs", "2", *kept, "one", "--save-parameters", "one.npz")
    trained(capsys, "--epochs", "1", *kept, "two", "--save-parameters", "first.npz")
    later, lines = trained(capsys, "--epochs", "2", *kept, "two", "--resume", "--save-parameters", "two.npz")
    one, two, first = (np.load(folder / f"{name}.npz") for name in ("one", "two", "first"))

    assert [2] == [line["epoch"] for line in lines]
    assert all(np.array_equal(one[name], two[name]) for name in one.files)
    assert not all(np.array_equal(one[name], first[name]) for name in one.files)
    for name in ("losses", "validation_loss", "accuracy", "training_accuracy"):
        assert whole[name] == later[name]
    assert ["step-00000007", "step-00000012"] == sorted(path.name for path in (folder / "two").iterdir())


@pytest.mark.heavy
def test_what_does_not_fit_the_checkpoint_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another number of images or order of them is another training, and so is a recording."""
    kept = ("--checkpoint-every", "1", "--checkpoints", "kept")
    trained(capsys, "--epochs", "1", *kept)

    for more, says in ((("--samples", "16"), "samples none, not 16"), (("--seed", "7"), "seed 42, not 7")):
        with pytest.raises(UsageError, match=says):
            trained(capsys, "--epochs", "2", *kept, "--resume", *more)
    with pytest.raises(UsageError, match="another training"):
        trained(capsys, "--steps", "9", *kept, "--resume")
    with pytest.raises(UsageError, match="only 20 samples"):
        trained(capsys, "--epochs", "1", "--batch-size", "32")
    (folder / "cifar" / "data_batch_4.bin").write_bytes(b"")
    with pytest.raises(DptraceError, match=r"data_batch_4\.bin is not a binary file"):
        trained(capsys, "--epochs", "1")


# The results of epochs: of one, of all, as a sentence, and from a checkpoint.


SECOND = 1_000_000_000


def of(laps: Sequence[float], losses: Sequence[float]) -> dict[str, Any]:
    return {"laps": [round(SECOND * lap) for lap in laps], "losses": list(losses)}


def test_an_epoch_takes_as_long_as_its_slowest_rank() -> None:
    """Two epochs of two steps on two ranks; throughput is the samples of all ranks over the mean epoch."""
    first = epoch_result([of([1, 1], [1, 2]), of([1, 2], [3, 4])])
    second = epoch_result([of([1, 1], [3, 4]), of([1, 0], [5, 6])])
    found = results([first, second | {"accuracy": 0.5}], {"batch_size": 100, "mode": "naive"}, 2)

    assert [3.0, 2.0] == found["epoch_s"]
    assert [1.0, 2.0, 1.0, 1.0] == found["step_s"]
    assert [1.5, 1.0] == found["epoch_step_p50_s"]
    assert (2.5, 80.0) == (found["avg_epoch_s"], found["samples_per_s"])
    assert [2.0, 3.0, 4.0, 5.0] == found["losses"]
    assert [1, 2, 3, 4] == found["local_losses"]
    assert ([None, 0.5], "naive", 2) == (found["accuracy"], found["mode"], found["epochs"])
    assert "validation_loss" not in found


def test_losses_that_are_not_finite_are_reported_as_nothing() -> None:
    """JSON has no NaN."""
    found = epoch_result([of([1], [float("nan")])])

    assert [None] == found["losses"] == found["local_losses"]
    assert epoch_line(found, 1, 1, 10)["loss"] is None


def test_the_sentence_names_what_is_known() -> None:
    """Percent for shares, three digits for losses; without validation and recording, the time alone."""
    line = epoch_line(epoch_result([of([2, 3], [])]), 2, 3, 5000)
    more = {"validation_loss": 1.25, "accuracy": 0.5, "training_accuracy": 0.75, "communication_fraction": 0.125}

    assert "epoch 2 of 3: 5.00 s, 1,000 samples/s" == epoch_text(line)
    assert epoch_text(line | more).endswith(
        "s 12.5 %, training accuracy 75.0 %, validation loss 1.250, accuracy 50.0 %"
    )


EPOCH = {"seconds": 2.0, "step_s": [1.0, 1.0], "losses": [1.0, None], "local_losses": []}


@pytest.mark.parametrize(
    ("history", "right"),
    [
        ([EPOCH, EPOCH], True),
        ([EPOCH], False),
        ((), False),
        ("ab", False),
        ([EPOCH, {}], False),
        ([EPOCH, EPOCH | {"seconds": "2"}], False),
        ([EPOCH, EPOCH | {"step_s": []}], False),
        ([EPOCH, EPOCH | {"losses": ["x"]}], False),
        ([EPOCH, EPOCH | {"accuracy": "high"}], False),
    ],
)
def test_a_checkpoint_has_the_results_of_the_epochs_before_it(history: Any, right: bool) -> None:
    """One of a recording has none, and a stranger's may have anything."""
    options: Any = SimpleNamespace(first_step=13, warmup=3, steps_per_epoch=5, epoch_results=history)
    if right:
        assert history == epochs_before(options)
        return
    with pytest.raises(DptraceError, match="step 13 does not hold"):
        epochs_before(options)


# The timer.


def timed(timer: Any, seconds: list[int]) -> None:
    """Train steps that take as many seconds as they are told."""
    left = [second * SECOND for second in seconds]
    timer.stopwatch = SimpleNamespace(begin=lambda: None, end=lambda: left.pop(0), durations_ns=list)
    with timer:
        for number in range(len(seconds)):
            timer.step(float(number))


def test_each_epoch_prints_a_line_when_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """After the warm-up; with what is evaluated then, and the results of all at the end."""
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
    before = {"seconds": 8.0, "step_s": [2.0] * 4, "losses": [9.0] * 4, "local_losses": [9.0] * 4}
    timed(EpochTimer(2, 4, 2, None, {"batch_size": 10}, [before]), [50, 50, 3, 5])
    found = json.loads(capsys.readouterr().out.splitlines()[-1].removeprefix("RESULTS_JSON:"))

    assert ([8.0, 16.0], [2.0, 2.0, 2.0, 2.0, 3.0, 5.0]) == (found["epoch_s"], found["step_s"])
    assert [9.0] * 4 + [0.0, 1.0, 2.0, 3.0] == found["losses"]
