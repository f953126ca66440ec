"""Compressors: what a message holds, how many bytes it takes, and how far off the decoded numbers are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from torch import Generator, Tensor

torch = pytest.importorskip("torch")

from dptrace.trainers.parts.compressors import (  # noqa: E402
    GROUP,
    Compressor,
    Int8,
    RandomK,
    Rounded,
    Threshold,
    TopK,
)

numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)
ratios = st.floats(0.01, 1)
CPU = torch.device("cpu")


def decoded(message: Compressor, gradient: Tensor) -> Tensor:
    """Return a gradient as the other ranks decode it."""
    into: Tensor = torch.zeros_like(gradient)
    message.unpack(message.pack(gradient), into)
    return into


def generator(seed: int) -> Generator:
    random: Generator = torch.Generator().manual_seed(seed)
    return random


@given(numbers, ratios)
@example([0.0, 0.0, 0.0], 0.5)
def test_top_k_sends_the_largest_as_they_are(values: list[float], ratio: float) -> None:
    """The number of values follows the ratio and is at least one; no omitted value is larger than a sent one."""
    gradient = torch.tensor(values)
    message = TopK(ratio)
    count = max(1, int(len(values) * ratio))
    sent = decoded(message, gradient)
    left = gradient - sent

    assert 8 * count == message.pack(gradient).nbytes
    assert torch.equal(sent + left, gradient)
    assert ((sent == 0) | (sent == gradient)).all()
    assert torch.count_nonzero(sent) <= count
    assert sorted(left.abs().tolist())[-1] <= sorted(gradient.abs().tolist())[-count]


@given(numbers, st.floats(1e-3, 1e6))
@example([0.0, 1.0], 1.0)
def test_a_threshold_sends_what_is_above_it(values: list[float], limit: float) -> None:
    """Eight bytes for each such value, and nothing of the others; zeros at the end change nothing."""
    gradient, message = torch.tensor(values), Threshold(limit)
    above = gradient.abs() > limit
    sent = message.pack(gradient)
    padded = torch.zeros_like(gradient)
    message.unpack(torch.nn.functional.pad(sent, (0, 16)), padded)

    assert 8 * int(above.sum()) == sent.nbytes
    assert torch.equal(gradient * above, decoded(message, gradient))
    assert torch.equal(gradient * above, padded)


@given(numbers, ratios, st.integers(0, 1 << 40))
def test_random_positions_are_the_same_on_every_rank(values: list[float], ratio: float, seed: int) -> None:
    """Two ranks with one seed choose one value in each of k parts: the sum of messages is that of the values."""
    mine, theirs = torch.tensor(values), torch.tensor(values).flip(0)
    ranks = [RandomK(ratio, seed) for _ in range(2)]
    for _ in range(3):
        first, second = (rank.draw(len(values), CPU) for rank in ranks)
        count = max(1, int(len(values) * ratio))
        into = torch.zeros_like(mine)
        first.unpack(first.pack(mine) + second.pack(theirs), into)
        positions = first.positions.tolist()

        assert 4 * count == first.pack(mine).nbytes
        assert sorted(set(positions)) == positions
        assert [p * count // len(values) for p in positions] == pytest.approx(range(count), abs=1)
        assert torch.equal((mine + theirs)[positions], into[positions])
        assert count >= torch.count_nonzero(into)


def test_every_position_has_its_turn() -> None:
    """In 400 draws of 5 out of 23, each position is drawn about as often as the share of its part says."""
    drawn = torch.zeros(23)
    random = RandomK(5 / 23, 1)
    for _ in range(400):
        drawn[random.draw(23, CPU).positions] += 1

    assert 2000 == drawn.sum()
    assert 50 < drawn.min() <= drawn.max() < 150


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
