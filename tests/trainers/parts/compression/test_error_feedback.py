"""Compressed gradients: the error of a message is not lost, and all ranks decode the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from torch import Tensor

torch = pytest.importorskip("torch")

from dptrace.trainers.parts.compression.error_feedback import ErrorFeedback  # noqa: E402
from dptrace.trainers.parts.compression.rounding import Int8, Rounded  # noqa: E402
from dptrace.trainers.parts.compression.sparse import Compressor, RandomK, Threshold, TopK  # noqa: E402

ALL: dict[str, Callable[[], Compressor | RandomK]] = {
    "topk": lambda: TopK(0.3),
    "randomk": lambda: RandomK(0.3, 1),
    "threshold": lambda: Threshold(20.0),
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
    feedback = ErrorFeedback(TopK(0.3))
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


def test_halves_are_added_up_as_whole_numbers() -> None:
    """The error of a bfloat16 sum is kept in float32."""
    feedback, parameters = ErrorFeedback(TopK(0.5)), [torch.zeros(2, dtype=torch.bfloat16)]
    sent_by(feedback, torch.tensor([256.0, 255.0], dtype=torch.bfloat16), parameters)
    sent_by(feedback, torch.tensor([512.0, 2.0], dtype=torch.bfloat16), parameters)

    assert [0.0, 257.0] == feedback.residual[parameters[0]].tolist()
