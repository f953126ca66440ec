"""Compressed gradients: the content of a message, and that its error is not lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from torch import Tensor

torch = pytest.importorskip("torch")

from dptrace.trainers.parts.error_feedback import Compressor, ErrorFeedback, Int8, TopK  # noqa: E402

numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)
ratios = st.floats(0.01, 1)


def decoded(message: Compressor, gradient: Tensor) -> Tensor:
    """Return a gradient as the other ranks decode it."""
    into: Tensor = torch.zeros_like(gradient)
    message.unpack(message.pack(gradient), into)
    return into


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
@given(st.lists(st.lists(st.integers(-100, 100), min_size=12, max_size=12), min_size=1, max_size=6), ratios)
def test_nothing_is_lost_only_late(steps: list[list[int]], ratio: float) -> None:
    """The sum of all sent messages and the remaining error is the sum of all gradients."""
    feedback = ErrorFeedback(TopK(ratio))
    parameters = [torch.zeros(3, 3), torch.zeros(3)]
    arrived = torch.zeros(12)
    for step in steps:
        feedback.compressor.unpack(feedback.compress_gradient(torch.tensor(step).float(), parameters), arrived)

    left = torch.cat([feedback.residual[parameter] for parameter in parameters])
    assert torch.equal(torch.tensor(steps).sum(0).float(), arrived + left)


def test_what_was_left_out_follows_its_parameter_into_other_buckets() -> None:
    """DDP moves the parameters to other buckets, in another order, after the first step."""
    feedback = ErrorFeedback(TopK(0.3))
    first, second = torch.zeros(2), torch.zeros(2)
    feedback.compress_gradient(torch.tensor([1.0, 9.0, 2.0, 3.0]), [first, second])

    sent = torch.zeros(2)
    feedback.compressor.unpack(feedback.compress_gradient(torch.zeros(2), [second]), sent)

    assert [0.0, 3.0] == sent.tolist()
    assert [1.0, 0.0] == feedback.residual[first].tolist()
    assert [2.0, 0.0] == feedback.residual[second].tolist()


@pytest.mark.parametrize("message", [TopK(0.5), Int8()], ids=["topk", "int8"])
@pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
def test_an_overflow_is_passed_on_and_then_forgotten(message: Compressor, wrong: float) -> None:
    """A gradient scaler must see the overflow in this step and in no later one."""
    feedback, parameters = ErrorFeedback(message), [torch.zeros(4)]
    sent, after = torch.zeros(4), torch.zeros(4)
    message.unpack(feedback.compress_gradient(torch.tensor([1.0, wrong, wrong, wrong]), parameters), sent)
    message.unpack(feedback.compress_gradient(torch.ones(4), parameters), after)

    assert not torch.isfinite(sent).all()
    assert torch.isfinite(after).all()


def test_halves_are_added_up_as_whole_numbers() -> None:
    """The error of a bfloat16 sum is kept in float32."""
    feedback, parameters = ErrorFeedback(TopK(0.5)), [torch.zeros(2, dtype=torch.bfloat16)]
    feedback.compress_gradient(torch.tensor([256.0, 255.0], dtype=torch.bfloat16), parameters)
    feedback.compress_gradient(torch.tensor([512.0, 2.0], dtype=torch.bfloat16), parameters)

    assert [0.0, 257.0] == feedback.residual[parameters[0]].tolist()
