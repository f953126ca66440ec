"""Compressors that send all numbers in few bits: in how many bytes, and how far off the decoded numbers are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from torch import Generator, Tensor

torch = pytest.importorskip("torch")

from dptrace.trainers.parts.compression.rounding import GROUP, Int8, Rounded  # noqa: E402

numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)


def decoded(message: Int8 | Rounded, gradient: Tensor) -> Tensor:
    """Return a gradient as the other ranks decode it."""
    into: Tensor = torch.zeros_like(gradient)
    message.unpack(message.pack(gradient), into)
    return into


def generator(seed: int) -> Generator:
    random: Generator = torch.Generator().manual_seed(seed)
    return random


@given(numbers)
@example([0.0, 0.0])
@example([1e-44, 0.0, -1e-44])
def test_int8_is_never_further_off_than_half_a_step(values: list[float]) -> None:
    """A step is 1/127 of the largest value; the error is known exactly."""
    gradient = torch.tensor(values)
    message = Int8()
    sent = decoded(message, gradient)
    left = gradient - sent
    step = max(map(abs, values)) / 127

    assert len(values) + 4 == message.pack(gradient).nbytes
    assert torch.int8 == message.pack(gradient).dtype
    assert (left.abs() <= step * 0.50001 + 1e-38).all()
    assert torch.equal(left.double() + sent.double(), gradient.double())


@given(st.integers(1, 127), st.integers(1, 1200), st.integers(0, 99), st.booleans())
@example(7, 512, 0, False)
@example(1, 513, 0, True)
@example(127, 1, 0, True)
def test_few_bits_are_never_further_off_than_a_step(levels: int, count: int, seed: int, at_random: bool) -> None:
    """A step is 1/levels of the largest value of a group of 512: half of it, or all of it with random rounding.

    The bytes are those of 2, 4 or 8 bits for each value of a group, and 4 for each step.
    """
    gradient = torch.randn(count, generator=generator(seed)).pow(3)
    message = Rounded(levels, generator(seed) if at_random else None)
    groups = torch.nn.functional.pad(gradient, (0, -count % GROUP)).view(-1, GROUP)
    step = (groups.abs().amax(1, keepdim=True) / levels).expand(-1, GROUP).flatten()[:count]
    bits = 2 if levels == 1 else 4 if levels <= 7 else 8

    assert len(groups) * (4 + GROUP * bits // 8) == message.pack(gradient).nbytes
    assert ((gradient - decoded(message, gradient)).abs() <= step * (1.00001 if at_random else 0.50001)).all()


@pytest.mark.parametrize("levels", [1, 7, 127])
def test_what_lies_on_a_step_comes_back_as_it_was(levels: int) -> None:
    """Packing and unpacking are each other's inverse: every level up and down, in every place of a byte."""
    steps = torch.arange(-levels, levels + 1).float().repeat(3)

    for random in (None, generator(0)):
        assert torch.equal(0.25 * steps, decoded(Rounded(levels, random), 0.25 * steps))


@pytest.mark.parametrize("levels", [1, 2, 7, 127])
def test_random_rounding_is_right_in_the_mean(levels: int) -> None:
    """The mean over 600 seeds lies within five standard errors, of which 1/2 a step over √600 is the largest."""
    gradient = torch.tensor([1.0, -0.9, 0.5, 0.013, -0.3, 0.0, 0.21])
    mean = torch.stack([decoded(Rounded(levels, generator(seed)), gradient) for seed in range(600)]).mean(0)

    assert ((mean - gradient).abs() < 5 * 0.5 / levels / 600**0.5).all()
    assert not torch.equal(gradient, decoded(Rounded(levels, generator(0)), gradient)) or levels == 127


def test_a_large_number_makes_only_its_own_group_coarse() -> None:
    """Behind 512 numbers with one of a million, small numbers arrive."""
    gradient = torch.full((2 * GROUP,), 0.1)
    gradient[3] = 1e6
    sent = decoded(Rounded(7), gradient)

    assert 0 == sent[4]
    assert torch.allclose(gradient[GROUP:], sent[GROUP:])
