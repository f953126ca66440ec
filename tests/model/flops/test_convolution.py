"""FLOPs and bytes of convolutions."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.model.flops.costs import Cost, OperatorCall, cost

X, W = (2, 4, 9, 9), (8, 4, 3, 3)


def forward(x: tuple[int, ...], w: tuple[int, ...], *settings: str, bias: tuple[int, ...] = ()) -> Cost:
    """Return the cost of a convolution; settings from the stride on."""
    dims: tuple[Any, ...] = (x, w, bias, *[()] * len(settings))
    found = cost(OperatorCall("aten::convolution", dims, ("float",) * 3, ("", "", "", *settings)))
    assert found is not None
    return found


def backward(grad: tuple[int, ...], x: tuple[int, ...], w: tuple[int, ...], transposed: str, mask: str) -> Cost:
    """Return the cost of the backward of a convolution."""
    dims: tuple[Any, ...] = (grad, x, w, *[()] * 8)
    concrete = ("", "", "", "[8]", "[1, 1]", "[0, 0]", "[1, 1]", transposed, "[0, 0]", "1", mask)
    found = cost(OperatorCall("aten::convolution_backward", dims, ("float",) * 3, concrete))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("settings", "positions"),
    [
        (("[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"), 7 * 7),
        (("[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"), 5 * 5),
        (("[1]", "[2]", "[2]", "False", "[0]", "1"), 9 * 9),
        (("[3, 1]", "[0, 1]", "[1, 1]", "False", "[0, 0]", "1"), 3 * 9),
    ],
)
def test_each_position_of_the_output_meets_the_whole_filter(settings: tuple[str, ...], positions: int) -> None:
    """Stride, padding and dilation decide how many positions there are; one number holds for all dimensions."""
    conv = forward(X, W, *settings, bias=(8,))
    out = 2 * 8 * positions

    assert 2 * (4 * 9) * out == conv.counted_flops
    assert 2 * (4 * 9) * out + out == conv.flops
    assert 4 * (2 * 4 * 81 + 8 * 4 * 9 + out + 8) == conv.bytes


def test_groups_divide_the_channels_a_filter_sees() -> None:
    """A weight [8, 1, 3, 3] of 4 groups meets one channel of the input at each position."""
    conv = forward(X, (8, 1, 3, 3), "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "4")

    assert 2 * 9 * (2 * 8 * 49) == conv.flops


def test_a_transposed_convolution_is_counted_by_its_input() -> None:
    """9 × 9 inputs of 4 channels meet a filter [4, 6, 3, 3] and give 19 × 19, with stride 2."""
    conv = forward(X, (4, 6, 3, 3), "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1", bias=(6,))
    out = 2 * 6 * 19 * 19

    assert (2 * 6 * 9 * (2 * 4 * 81) + out, 4 * (2 * 4 * 81 + 4 * 6 * 9 + out + 6)) == (conv.flops, conv.bytes)


@pytest.mark.parametrize(("mask", "gradients", "bias"), [("[True, True, False]", 2, 0), ("[False, True, True]", 1, 1)])
def test_the_backward_counts_the_gradients_that_are_computed(mask: str, gradients: int, bias: int) -> None:
    """Each gradient of input and weight costs as much as the forward, the bias' one operation for each output."""
    out = 2 * 8 * 49

    found = backward((2, 8, 7, 7), X, W, "False", mask)

    assert (2 * 36 * out * gradients + out * bias, 2 * 36 * out * gradients) == (found.flops, found.counted_flops)


def test_the_backward_of_a_transposed_one_is_counted_by_its_input() -> None:
    """As its forward is."""
    assert (
        2 * (6 * 9) * (2 * 4 * 81) * 2 == backward((2, 6, 19, 19), X, (4, 6, 3, 3), "True", "[True, True, False]").flops
    )


def test_the_libraries_own_operators_have_their_order_of_arguments() -> None:
    """cuDNN has no bias and names the padding first; MIOpen and mkldnn have the bias third."""
    settings = ("[1, 1]", "[2, 2]", "[1, 1]", "1")
    cudnn = cost(OperatorCall("aten::cudnn_convolution", (X, W, (), (), (), ()), ("float",) * 2, ("", "", *settings)))
    mkldnn = OperatorCall(
        "aten::mkldnn_convolution", (X, W, (8,), (), (), (), ()), ("float",) * 3, ("",) * 3 + settings
    )

    expected = forward(X, W, "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1")
    found = cost(mkldnn)

    assert expected == cudnn
    assert found is not None
    assert (expected.flops or 0) + 2 * 8 * 25 == found.flops


def test_one_and_three_dimensions() -> None:
    """[2, 4, 9] and [2, 4, 9, 9, 9] convolve too; without spatial dimensions there is no cost."""
    settings = ("[1]", "[0]", "[1]", "False", "[0]", "1")

    assert 2 * 12 * (2 * 8 * 7) == forward((2, 4, 9), (8, 4, 3), *settings).flops
    assert 2 * 108 * (2 * 8 * 343) == forward((2, 4, 9, 9, 9), (8, 4, 3, 3, 3), *settings).flops
    assert cost(OperatorCall("aten::convolution", ((2, 4), (8, 4), ()), ("float",) * 3, ("",) * 3)) is None
