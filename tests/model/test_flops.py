"""FLOPs and bytes of convolutions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.model.operator_costs import Cost, OperatorCall, cost

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


# FLOPs and bytes of matrix products.


BF16, F32, FP8 = "c10::BFloat16", "float", "c10::Float8_e4m3fn"
SIZE = st.integers(0, 50)


def known(name: str, dims: tuple[Any, ...], dtypes: tuple[str, ...], concrete: tuple[str, ...] = ()) -> Cost:
    """Return the cost of a call that has one."""
    found = cost(OperatorCall(name, dims, dtypes, concrete))
    assert found is not None
    return found


def test_a_product_counts_two_operations_for_each_term() -> None:
    """[3, 4] × [4, 5] has 60 terms; in bf16 it moves 12 + 20 + 15 elements of 2 bytes."""
    mm = known("aten::mm", ((3, 4), (4, 5)), (BF16, BF16))

    assert (mm.flops, mm.counted_flops, mm.bytes) == (120, 120, 94)
    assert (mm.batch, mm.m, mm.n, mm.k, mm.dtype, mm.kind) == (1, 3, 5, 4, "bf16", "matmul")


def test_a_bias_adds_one_operation_for_each_result_that_torch_does_not_count() -> None:
    """addmm of [3, 4] × [4, 5] and a bias of 5."""
    addmm = known("aten::addmm", ((5,), (3, 4), (4, 5), (), ()), (F32, F32, F32, "Scalar", "Scalar"))

    assert (addmm.flops, addmm.counted_flops, addmm.bytes) == (135, 120, 4 * (12 + 20 + 15 + 5))


@given(batch=SIZE, m=SIZE, n=SIZE, k=SIZE)
def test_a_batch_is_the_sum_of_its_products(batch: int, m: int, n: int, k: int) -> None:
    """bmm costs as much as its products one by one, whatever the sizes; so does matmul, which may call it."""
    one = known("aten::mm", ((m, k), (k, n)), (F32, F32))

    for name in ("aten::bmm", "aten::matmul"):
        many = known(name, ((batch, m, k), (batch, k, n)), (F32, F32))
        assert (batch * (one.flops or 0), batch * (one.bytes or 0)) == (many.flops, many.bytes)


def test_scaled_products_write_what_the_trace_says_else_two_bytes() -> None:
    """Of fp8 factors the output is bf16 unless it is recorded, as compiled code does."""
    dims, dtypes = ((16, 32), (32, 8), (), (), ()), (FP8, FP8, F32, F32, "")
    recorded = known("aten::_scaled_mm", (*dims, (), (), (), (16, 8)), (*dtypes, "", "Scalar", "Scalar", F32))

    assert 512 + 256 + 2 * 128 == known("aten::_scaled_mm", dims, dtypes).bytes
    assert (512 + 256 + 4 * 128, "fp8") == (recorded.bytes, recorded.dtype)


@pytest.mark.parametrize(
    ("name", "dims", "flops"),
    [
        ("aten::linear", ((2, 3, 4), (5, 4), (5,)), 2 * 6 * 4 * 5 + 30),
        ("aten::linear", ((2, 3, 4), (5, 4), ()), 2 * 6 * 4 * 5),
        ("aten::mkldnn_linear", ((3, 4), (5, 4), ()), 120),
        ("aiter::gemm_a16w16", ((3, 4), (5, 4)), 120),
        ("aten::mv", ((3, 4), (4,)), 24),
        ("aten::addmv", ((3,), (3, 4), (4,)), 27),
        ("aten::dot", ((7,), (7,)), 14),
        ("aten::baddbmm", ((2, 3, 5), (2, 3, 4), (2, 4, 5)), 2 * 135),
        ("aten::addbmm", ((3, 5), (2, 3, 4), (2, 4, 5)), 2 * 120 + 15),
        ("aten::matmul", ((6, 2, 3, 4), (4, 5)), 12 * 120),
        ("aten::matmul", ((6, 1, 3, 4), (2, 4, 5)), 12 * 120),
        ("aten::matmul", ((4,), (4, 5)), 40),
        ("aten::matmul", ((3, 4), (4,)), 24),
        ("aten::_grouped_mm", ((30, 4), (8, 4, 5)), 30 * 4 * 5 * 2),
        ("aten::_grouped_mm", ((8, 3, 4), (8, 4, 5)), 8 * 120),
        ("aten::_grouped_mm", ((3, 40), (40, 5)), 3 * 40 * 5 * 2),
    ],
)
def test_every_form_of_a_product(name: str, dims: tuple[Any, ...], flops: int) -> None:
    """Weights of nn.Linear are stored transposed, vectors are rows or columns, leading dimensions broadcast."""
    assert flops == known(name, dims, (F32,) * len(dims)).flops


def test_einsum_of_two_operands_counts_all_indices() -> None:
    """bqhd,bkhd->bhqk has 2·b·q·k·h·d; three operands have no formula."""
    dims: tuple[Any, ...] = ((), ((2, 3, 4, 5), (2, 6, 4, 5)), ())
    einsum = OperatorCall("aten::einsum", dims, ("", "TensorList", ""), ("bqhd,bkhd->bhqk", "", ""))

    found = cost(einsum)

    assert found is not None
    assert 2 * 2 * 3 * 6 * 4 * 5 == found.flops
    assert cost(OperatorCall("aten::einsum", dims, einsum.dtypes, ("ab,bc,cd->ad", "", ""))) is None


@pytest.mark.parametrize(
    "dims",
    [(), ((3, 4),), ((3, 4), (5, 6)), (((3, 4), (4, 5)), ()), ((3,), (3, 4, 5)), ((-1, 4), "x"), ((3, 4), (4.5, 2))],
)
def test_shapes_that_do_not_fit_have_no_cost(dims: tuple[Any, ...]) -> None:
    """Missing, mismatched or odd shapes out of a stranger's file give no figure, and no error."""
    for name in ("aten::mm", "aten::addmm", "aten::linear", "aten::matmul", "aten::_grouped_mm", "aten::einsum"):
        assert cost(OperatorCall(name, dims, ("float",) * len(dims))) is None


def test_an_unknown_type_leaves_the_bytes_unknown() -> None:
    """FLOPs need no type, bytes do."""
    found = known("aten::mm", ((3, 4), (4, 5)), ("c10::Strange", "c10::Strange"))

    assert (120, None, "Strange") == (found.flops, found.bytes, found.dtype)
