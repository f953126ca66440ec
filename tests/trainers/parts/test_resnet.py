"""ResNet-18 and its images, read from files or synthetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dptrace.errors import UsageError

torch = pytest.importorskip("torch")


def folder(path: Path, each: int = 4) -> str:
    """Write a small CIFAR-10 whose pixel values count up with the image; return its folder."""
    for number, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        records = np.zeros((each, 3073), np.uint8)
        records[:, 0] = np.arange(each) % 10
        records[:, 1:] = number * 10 + np.arange(each)[:, None]
        records.tofile(path / name)
    return str(path)


def test_the_model_is_resnet18() -> None:
    """It has as many parameters as torchvision's with ten classes, and a score for each class."""
    from dptrace.trainers.parts import resnet

    model = resnet.build()

    assert 11_181_642 == sum(parameter.numel() for parameter in model.parameters())
    assert (2, 10) == model(torch.zeros(2, 3, 32, 32)).shape


def test_binary_files_are_read_as_images_from_0_to_1(tmp_path: Path) -> None:
    """The five training files are concatenated; validation uses the test file."""
    from dptrace.trainers.parts.resnet import Cifar10

    training, validation = Cifar10(folder(tmp_path)), Cifar10(str(tmp_path), validation=True)
    x, y = training[3:5]

    assert (20, 4) == (len(training), len(validation))
    assert (2, 3, 32, 32) == x.shape
    assert [3, 0] == y.tolist()
    assert pytest.approx([3 / 255, 10 / 255]) == x[:, 0, 0, 0].tolist()


@pytest.mark.parametrize(
    ("spoil", "says"), [("missing", "cifar-10-binary"), ("cut", "not a binary file"), ("other", "not a binary file")]
)
def test_a_folder_without_the_files_is_told(tmp_path: Path, spoil: str, says: str) -> None:
    """The message names the file and the archive to unpack."""
    from dptrace.trainers.parts.resnet import Cifar10

    file = Path(folder(tmp_path)) / "data_batch_2.bin"
    if spoil == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] if spoil == "cut" else b"\xff" * 3073)
    with pytest.raises(UsageError, match=says) as error:
        Cifar10(str(tmp_path))
    assert "data_batch_2.bin" in str(error.value)


def test_made_up_images_are_the_same_on_every_rank_and_new_in_validation() -> None:
    """A row does not depend on the slice that it comes in; validation uses no training image."""
    from dptrace.trainers.parts.resnet import SyntheticImages

    training, validation = SyntheticImages(1), SyntheticImages(1, validation=True)

    assert torch.equal(training[2:6][0][1], training[3:4][0][0])
    assert not torch.equal(training[0:1][0], validation[0:1][0])
    assert torch.equal(training.patterns, validation.patterns)


@pytest.mark.heavy
def test_accuracy_is_the_share_of_rightly_classified_images() -> None:
    """The count covers all validation data, split over the ranks."""
    from dptrace.record import World, parse_options
    from dptrace.trainers.parts.task import build_task

    options = parse_options("", "single", ["--model", "resnet18", "--batch-size", "2"])
    task = build_task(options, World(0, 1, torch.device("cpu")))
    assert task.validation is not None
    truth = task.validation[:2048][1]

    always = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
    torch.nn.init.zeros_(always[1].weight)
    always[1].bias.data = torch.eye(10)[3]

    assert pytest.approx(float((truth == 3).float().mean())) == task.accuracy(always)
    assert (
        build_task(parse_options("", "single", ["--model", "small"]), World(0, 1, torch.device("cpu"))).accuracy(always)
        is None
    )
