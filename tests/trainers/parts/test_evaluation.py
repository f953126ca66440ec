"""The latency of inference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptrace.errors import DptraceError, UsageError
from tests.support.cifar10_files import write_binary

torch = pytest.importorskip("torch")


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
    from dptrace.trainers.parts.evaluation import inference_latency

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


class Scores:
    """Samples whose scores are themselves."""

    def __init__(self, scores: list[list[float]], classes: list[int]) -> None:
        self.x, self.y = torch.tensor(scores), torch.tensor(classes)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: slice) -> tuple[Any, Any]:
        return self.x[rows], self.y[rows]


def test_loss_and_accuracy_are_those_of_the_samples() -> None:
    """Three of four equal scores name another class; the loss of equal scores is the logarithm of their number."""
    from dptrace.record import World
    from dptrace.trainers.parts.evaluation import loss_and_accuracy

    data = Scores([[0.0, 0.0]] * 300 + [[9.0, 0.0]], [0] * 75 + [1] * 225 + [1])
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2, eps=0), torch.nn.Identity())
    world = World(0, 1, torch.device("cpu"))
    loss, accuracy = loss_and_accuracy(model, data, 300, world, lambda x, y: (x, y))

    assert pytest.approx(0.6931, abs=1e-4) == loss
    assert 0.25 == accuracy
    assert (True, 0) == (model.training, int(model[0].num_batches_tracked))


# A timed training on CIFAR-10: evaluated after each epoch, continued from a checkpoint bit for bit.


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a small CIFAR-10, a process group of one rank, and a small model in the place of ResNet-18."""
    from dptrace.trainers.parts import models

    def small() -> Any:
        layers = torch.nn.Conv2d(3, 4, 8, 8), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(64, 10)
        return torch.nn.Sequential(*layers)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "build_resnet", small)
    write_binary(tmp_path / "cifar")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield tmp_path
    torch.distributed.destroy_process_group()


def trained(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train, and return the results and the lines of the epochs."""
    from dptrace.record import World, parse_options
    from dptrace.trainers import single

    common = ("--model", "resnet18", "--data", "cifar", "--batch-size", "4", "--warmup", "2")
    single.train(parse_options("", "single", [*common, *arguments]), World(0, 1, torch.device("cpu")))
    *lines, last = capsys.readouterr().out.splitlines()
    epochs = [json.loads(line.removeprefix("EPOCH_JSON:")) for line in lines]
    return json.loads(last.removeprefix("RESULTS_JSON:")), epochs


@pytest.mark.heavy
def test_an_epoch_is_as_long_as_the_data(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_it_continues_bit_for_bit_after_an_epoch(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second epoch after a checkpoint ends with the parameters, losses and accuracies of two epochs at once."""
    kept = ("--checkpoint-every", "1", "--checkpoints")
    whole, _ = trained(capsys, "--epochs", "2", *kept, "one", "--save-parameters", "one.npz")
    trained(capsys, "--epochs", "1", *kept, "two", "--save-parameters", "first.npz")
    later, lines = trained(capsys, "--epochs", "2", *kept, "two", "--resume", "--save-parameters", "two.npz")
    one, two, first = (np.load(alone / f"{name}.npz") for name in ("one", "two", "first"))

    assert [2] == [line["epoch"] for line in lines]
    assert all(np.array_equal(one[name], two[name]) for name in one.files)
    assert not all(np.array_equal(one[name], first[name]) for name in one.files)
    for name in ("losses", "validation_loss", "accuracy", "training_accuracy"):
        assert whole[name] == later[name]
    assert ["step-00000007", "step-00000012"] == sorted(path.name for path in (alone / "two").iterdir())


@pytest.mark.heavy
def test_what_does_not_fit_the_checkpoint_is_refused(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    (alone / "cifar" / "data_batch_4.bin").write_bytes(b"")
    with pytest.raises(DptraceError, match=r"data_batch_4\.bin is not a binary file"):
        trained(capsys, "--epochs", "1")


@pytest.mark.heavy
def test_models_without_validation_data_have_their_loss_only(
    alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An MLP learns noise, so there is nothing to validate."""
    from dptrace.record import World, parse_options
    from dptrace.trainers import single

    arguments = ["--model", "small", "--samples", "64", "--batch-size", "32", "--epochs", "1", "--warmup", "2"]
    single.train(parse_options("", "single", arguments), World(0, 1, torch.device("cpu")))
    line, last = capsys.readouterr().out.splitlines()

    assert {"epoch", "epochs", "seconds", "samples_per_s", "step_p50_s", "loss"} == set(
        json.loads(line.removeprefix("EPOCH_JSON:"))
    )
    assert "accuracy" not in json.loads(last.removeprefix("RESULTS_JSON:"))
