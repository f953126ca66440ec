"""ResNet-18 and its images, read from files or synthetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.cifar10_files import write_binary

torch = pytest.importorskip("torch")


def test_the_model_is_resnet18() -> None:
    """It has as many parameters as torchvision's with ten classes, and a score for each class."""
    from dptrace.trainers.parts.models import resnet

    model = resnet.build()

    assert 11_181_642 == sum(parameter.numel() for parameter in model.parameters())
    assert (2, 10) == model(torch.zeros(2, 3, 32, 32)).shape


def test_files_are_read_as_images_from_0_to_1(tmp_path: Path) -> None:
    """The five training files are concatenated; validation uses the test file; rows may be in any order."""
    from dptrace.trainers.parts.models.resnet import Cifar10

    training, validation = Cifar10(str(write_binary(tmp_path))), Cifar10(str(tmp_path), validation=True)
    x, y = training[3:5]

    assert (20, 4) == (len(training), len(validation))
    assert (2, 3, 32, 32) == x.shape
    assert [3, 0] == y.tolist()
    assert pytest.approx([3 / 255, 10 / 255]) == x[:, 0, 0, 0].tolist()
    assert torch.equal(x.flip(0), training[np.array([4, 3])][0])


def test_made_up_images_are_the_same_on_every_rank_and_new_in_validation() -> None:
    """A row does not depend on the slice that it comes in; validation uses no training image."""
    from dptrace.trainers.parts.models.resnet import SyntheticImages

    training, validation = SyntheticImages(1), SyntheticImages(1, validation=True)

    assert torch.equal(training[2:6][0][1], training[3:4][0][0])
    assert torch.equal(training[np.array([9, 3])][0][1], training[3:4][0][0])
    assert not torch.equal(training[0:1][0], validation[0:1][0])
    assert torch.equal(training.patterns, validation.patterns)
