"""The models by their names, their data, and the order in which a training takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptrace.record.options.modes import MODELS
from tests.support.cifar10_files import write_binary

torch = pytest.importorskip("torch")

from torch.utils.data import DistributedSampler  # noqa: E402

from dptrace.record import parse_options  # noqa: E402
from dptrace.trainers.parts import models  # noqa: E402
from dptrace.trainers.parts.models import Cifar10, Order, SyntheticImages, model_and_data, token_options  # noqa: E402


def test_a_decoder_comes_with_text_whose_samples_have_several_tokens() -> None:
    """run.json learns from the data how many tokens a sample has; a decoder has no validation data."""
    _, data, validation = model_and_data(parse_options("", "single", ["--model", "gpt-tiny"]))

    assert validation is None
    assert {"tokens_per_sample": data[0:1][0].shape[1]} == token_options(data)


# The decoder and its synthetic text.


def test_no_prediction_sees_what_comes_after() -> None:
    """Changing a token changes no score before it, and some after it."""
    torch.manual_seed(0)
    model = models.build_gpt("gpt-tiny")
    x, _ = models.Text("gpt-tiny", 1)[0:1]
    other = x.clone()
    other[0, 20] = (other[0, 20] + 1) % 512
    with torch.no_grad():
        a, b = model(x), model(other)

    assert torch.allclose(a[0, :20], b[0, :20], atol=1e-6)
    assert not torch.allclose(a[0, 20:], b[0, 20:], atol=1e-3)


def test_text_is_the_same_on_every_rank_and_can_be_learned() -> None:
    """The target is the text shifted by one token, and four of five tokens follow by a step of one."""
    text = models.Text("gpt-tiny", 5)
    x, y = text[0:64]

    assert (64, 64) == tuple(x.shape)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert torch.equal(text[7:9][0][0], x[7])
    assert pytest.approx(0.8, abs=0.03) == float(((y - x) % 512 == 1).float().mean())


# The sizes of the models.


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        *(("gpt-tiny", 932_608), ("gpt-small", 135_780_864), ("small", 1_462_538), ("medium", 8_432_138)),
        *(("large", 35_211_786), ("xlarge", 51_993_098)),
    ],
)
def test_the_models_have_the_sizes_that_their_help_shows(model: str, parameters: int) -> None:
    """In millions, with one digit."""
    build = models.build_mlp if model in models.WIDTHS else models.build_gpt
    with torch.device("meta"):  # 52 million numbers need no memory there
        count = sum(parameter.numel() for parameter in build(model).parameters())

    assert parameters == count
    assert f"{count / 1e6:.1f} million" in MODELS[model].description


# ResNet-18 and its images, read from files or synthetic.


@pytest.mark.heavy
def test_the_model_is_resnet18() -> None:
    """It has as many parameters as torchvision's with ten classes, and a score for each class."""
    model = models.build_resnet()

    assert 11_181_642 == sum(parameter.numel() for parameter in model.parameters())
    assert (2, 10) == model(torch.zeros(2, 3, 32, 32)).shape


def test_files_are_read_as_images_from_0_to_1(tmp_path: Path) -> None:
    """The five training files are concatenated; validation uses the test file; rows may be in any order."""
    training, validation = Cifar10(str(write_binary(tmp_path))), Cifar10(str(tmp_path), validation=True)
    x, y = training[3:5]

    assert (20, 4) == (len(training), len(validation))
    assert (2, 3, 32, 32) == x.shape
    assert [3, 0] == y.tolist()
    assert pytest.approx([3 / 255, 10 / 255]) == x[:, 0, 0, 0].tolist()
    assert torch.equal(x.flip(0), training[np.array([4, 3])][0])


def test_made_up_images_are_the_same_on_every_rank_and_new_in_validation() -> None:
    """A row does not depend on the slice that it comes in; validation uses no training image."""
    training, validation = SyntheticImages(1), SyntheticImages(1, validation=True)

    assert torch.equal(training[2:6][0][1], training[3:4][0][0])
    assert torch.equal(training[np.array([9, 3])][0][1], training[3:4][0][0])
    assert not torch.equal(training[0:1][0], validation[0:1][0])
    assert torch.equal(training.patterns, validation.patterns)


# The order of the data: that of torch's sampler, every sample once in an epoch, another order in the next.


@pytest.mark.parametrize(("samples", "batch", "ranks"), [(20, 4, 2), (23, 6, 3), (16, 8, 1)])
def test_each_rank_gets_the_samples_of_torchs_sampler(samples: int, batch: int, ranks: int) -> None:
    """In the first two epochs, after a warm-up: the same numbers in the same order."""
    order = Order(samples, batch, 7, warmup=3)
    steps, share = order.steps_per_epoch, batch // ranks
    for rank in range(ranks):
        data: Any = range(samples)
        sampler: Any = DistributedSampler(data, ranks, rank, seed=7, drop_last=True)
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            mine = np.concatenate([order.rows(3 + epoch * steps + step, rank, ranks) for step in range(steps)])
            assert list(sampler)[: steps * share] == mine.tolist()


def test_the_shares_are_disjoint_and_an_epoch_uses_each_sample_once() -> None:
    """Whatever the number of ranks, a step uses the same samples; the warm-up and other seeds have other orders."""

    def numbers(step: int, rank: int = 0, ranks: int = 1, seed: int = 1) -> list[int]:
        rows = Order(24, 6, seed, warmup=2).rows(step, rank, ranks)
        assert isinstance(rows, np.ndarray)
        return [int(row) for row in rows]

    steps = [[row for rank in range(3) for row in numbers(2 + step, rank, 3)] for step in range(4)]

    assert list(range(24)) == sorted(row for step in steps for row in step)
    assert [sorted(numbers(2 + step)) for step in range(4)] == [sorted(step) for step in steps]
    assert numbers(2) != numbers(6)
    assert numbers(0) != numbers(4)
    assert numbers(2) != numbers(2, seed=2)
    assert 6 == len(numbers(7, seed=(1 << 63) - 1))


def test_without_a_seed_batches_follow_each_other() -> None:
    """And begin again after the last full batch."""
    order = Order(11, 4, None)

    assert [slice(2, 4), slice(6, 8), slice(2, 4)] == [order.rows(step, 1, 2) for step in range(3)]
