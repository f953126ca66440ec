"""Compressed gradients: the error of a message is not lost, and all ranks decode the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from dptrace.trainers.parts import compression  # noqa: E402
from dptrace.trainers.parts.compression import ErrorFeedback, Int8, RandomK, Rounded, threshold, top_k  # noqa: E402

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from dptrace.trainers.parts.compression import Compressor


ALL: dict[str, Callable[[], Compressor | RandomK]] = {
    "topk": lambda: top_k(0.3),
    "randomk": lambda: RandomK(0.3, 1),
    "threshold": lambda: threshold(20.0),
    "int8": lambda: Int8(),
    "int4": lambda: Rounded(7),
}


def sent_by(feedback: ErrorFeedback, gradient: Tensor, parameters: list[Tensor]) -> Tensor:
    """Compress a gradient, and return it as the other ranks decode it."""
    compressor = feedback.compressor_for(gradient)
    sent: Tensor = torch.zeros(len(gradient))
    compressor.unpack(feedback.compress_gradient(gradient, parameters, compressor), sent)
    return sent


@pytest.mark.heavy
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25)
@given(steps=st.lists(st.lists(st.integers(-100, 100), min_size=12, max_size=12), min_size=1, max_size=6))
def test_nothing_is_lost_only_late(name: str, steps: list[list[int]]) -> None:
    """The sum of all sent messages and the remaining error is the sum of all gradients."""
    feedback = ErrorFeedback(ALL[name]())
    parameters = [torch.zeros(3, 3), torch.zeros(3)]
    arrived = sum((sent_by(feedback, torch.tensor(step).float(), parameters) for step in steps), torch.zeros(12))

    left = torch.cat([feedback.residual[parameter] for parameter in parameters])
    assert torch.allclose(torch.tensor(steps).sum(0).float(), arrived + left, rtol=0, atol=1e-3)


def test_unbiased_messages_leave_no_error_behind() -> None:
    """Random rounding is right in the mean: what it errs by is not sent again."""
    feedback = ErrorFeedback(Rounded(1, torch.Generator().manual_seed(1)), unbiased=True)
    sent = sent_by(feedback, torch.tensor([1.0, 0.4, -0.3]), [torch.zeros(3)])

    assert {} == feedback.residual
    assert {-1.0, 0.0, 1.0} >= set(sent.tolist())


def test_what_was_left_out_follows_its_parameter_into_other_buckets() -> None:
    """DDP moves the parameters to other buckets, in another order, after the first step."""
    feedback = ErrorFeedback(top_k(0.3))
    first, second = torch.zeros(2), torch.zeros(2)
    sent_by(feedback, torch.tensor([1.0, 9.0, 2.0, 3.0]), [first, second])

    sent = sent_by(feedback, torch.zeros(2), [second])

    assert [0.0, 3.0] == sent.tolist()
    assert [1.0, 0.0] == feedback.residual[first].tolist()
    assert [2.0, 0.0] == feedback.residual[second].tolist()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
def test_an_overflow_is_passed_on_and_then_forgotten(name: str, wrong: float) -> None:
    """A gradient scaler must see the overflow in this step, wherever it is, and in no later one."""
    feedback, parameters = ErrorFeedback(ALL[name]()), [torch.zeros(4)]
    for position in range(4):
        gradient = torch.ones(4)
        gradient[position] = wrong
        sent, after = (sent_by(feedback, each, parameters) for each in (gradient, torch.ones(4)))

        assert not torch.isfinite(sent).all()
        assert torch.isfinite(after).all()


# Compressors that send all numbers in few bits: in how many bytes, and how far off the decoded numbers are.


numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)


def decoded(message: Compressor, gradient: Tensor) -> Tensor:
    """Return a gradient as the other ranks decode it."""
    into: Tensor = torch.zeros_like(gradient)
    message.unpack(message.pack(gradient), into)
    return into


def generator(seed: int) -> Generator:
    random: Generator = torch.Generator().manual_seed(seed)
    return random


@pytest.mark.heavy
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


@pytest.mark.heavy
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
    groups = torch.nn.functional.pad(gradient, (0, -count % compression.GROUP)).view(-1, compression.GROUP)
    step = (groups.abs().amax(1, keepdim=True) / levels).expand(-1, compression.GROUP).flatten()[:count]
    bits = 2 if levels == 1 else 4 if levels <= 7 else 8

    assert len(groups) * (4 + compression.GROUP * bits // 8) == message.pack(gradient).nbytes
    assert ((gradient - decoded(message, gradient)).abs() <= step * (1.00001 if at_random else 0.50001)).all()


@pytest.mark.heavy
@pytest.mark.parametrize("levels", [1, 2, 7, 127])
def test_random_rounding_is_right_in_the_mean(levels: int) -> None:
    """The mean over 600 seeds lies within five standard errors, of which 1/2 a step over √600 is the largest."""
    gradient = torch.tensor([1.0, -0.9, 0.5, 0.013, -0.3, 0.0, 0.21])
    mean = torch.stack([decoded(Rounded(levels, generator(seed)), gradient) for seed in range(600)]).mean(0)

    assert ((mean - gradient).abs() < 5 * 0.5 / levels / 600**0.5).all()
    assert not torch.equal(gradient, decoded(Rounded(levels, generator(0)), gradient)) or levels == 127


def test_a_large_number_makes_only_its_own_group_coarse() -> None:
    """Behind 512 numbers with one of a million, small numbers arrive."""
    gradient = torch.full((2 * compression.GROUP,), 0.1)
    gradient[3] = 1e6
    sent = decoded(Rounded(7), gradient)

    assert 0 == sent[4]
    assert torch.allclose(gradient[compression.GROUP :], sent[compression.GROUP :])


# Compressors that send some of the numbers: which, as what, and in how many bytes.


ratios = st.floats(0.01, 1)
CPU = torch.device("cpu")


@pytest.mark.heavy
@given(numbers, ratios)
@example([0.0, 0.0, 0.0], 0.5)
def test_top_k_sends_the_largest_as_they_are(values: list[float], ratio: float) -> None:
    """The number of values follows the ratio and is at least one; no omitted value is larger than a sent one."""
    gradient = torch.tensor(values)
    message = top_k(ratio)
    count = max(1, int(len(values) * ratio))
    sent = decoded(message, gradient)
    left = gradient - sent

    assert 8 * count == message.pack(gradient).nbytes
    assert torch.equal(sent + left, gradient)
    assert ((sent == 0) | (sent == gradient)).all()
    assert torch.count_nonzero(sent) <= count
    assert sorted(left.abs().tolist())[-1] <= sorted(gradient.abs().tolist())[-count]


@pytest.mark.heavy
@given(numbers, st.floats(1e-3, 1e6))
@example([0.0, 1.0], 1.0)
def test_a_threshold_sends_what_is_above_it(values: list[float], limit: float) -> None:
    """Eight bytes for each such value, and nothing of the others; zeros at the end change nothing."""
    gradient, message = torch.tensor(values), threshold(limit)
    above = gradient.abs() > limit
    sent = message.pack(gradient)
    padded = torch.zeros_like(gradient)
    message.unpack(torch.nn.functional.pad(sent, (0, 16)), padded)

    assert 8 * int(above.sum()) == sent.nbytes
    assert torch.equal(gradient * above, decoded(message, gradient))
    assert torch.equal(gradient * above, padded)


@pytest.mark.heavy
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
