"""Which operators have formulas, and which take the kernels below them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dptrace.model import attention, flops, operator_costs
from dptrace.model.flops import ITEM_BYTES
from dptrace.model.operator_costs import OperatorCall, cost, owns_kernels, owns_without_parts

NAMES = sorted(
    {
        *flops.MATMUL_FORMULAS,
        *flops.OF_PARTS,
        *flops.CONVOLUTION_FORMULAS,
        *attention.FORMULAS,
        *operator_costs.POINTWISE_FORMULAS,
    }
)
SIZES = st.lists(st.integers(-2, 9), max_size=5).map(tuple)


def test_operators_with_flops_own_their_kernels() -> None:
    """A product, a convolution and an attention do; what only moves bytes does not, nor what calls other operators."""
    owners = [name for name in ("aten::mm", "aten::convolution", "aten::add", "aten::linear") if owns_kernels(name)]

    assert ["aten::mm", "aten::convolution"] == owners
    assert (True, False) == (owns_without_parts("aten::linear"), owns_without_parts("aten::mm"))


def test_an_unknown_operator_and_one_without_shapes_have_no_cost() -> None:
    """Nothing is guessed from a name."""
    assert cost(OperatorCall("my::operator", ((3, 4),), ("float",))) is None
    assert cost(OperatorCall("aten::mm")) is None


@pytest.mark.heavy
@given(
    name=st.sampled_from(NAMES),
    dims=st.lists(SIZES | st.lists(SIZES, max_size=2).map(tuple), max_size=12).map(tuple),
    dtypes=st.lists(st.sampled_from(["", "float", "long int", "Scalar", "TensorList", "?"]), max_size=12).map(tuple),
    concrete=st.lists(st.sampled_from(["", "[1, 1]", "True", "0.5", "[", "-3", "None"]), max_size=12).map(tuple),
)
def test_no_inputs_break_a_formula(
    name: str, dims: tuple[object, ...], dtypes: tuple[str, ...], concrete: tuple[str, ...]
) -> None:
    """Whatever a file records, there is a cost or none."""
    found = cost(OperatorCall(name, dims, dtypes, concrete))

    assert found is None or found.kind != ""


# Bytes of elementwise operators, reductions, normalization, softmax, embedding and copies.


F32, BF16, I64 = "float", "c10::BFloat16", "long int"


@pytest.mark.parametrize(
    ("name", "dims", "dtypes", "concrete", "expected", "kind"),
    [
        ("aten::add", ((8, 4), (4,), ()), (F32, F32, "Scalar"), (), 4 * (32 + 4 + 32), "elementwise"),
        ("aten::add_", ((8, 4), (4,), ()), (F32, F32, "Scalar"), (), 4 * (32 + 4 + 32), "elementwise"),
        ("aten::mul", ((8, 4), ()), (BF16, "double"), (), 2 * 32 + 8 + 2 * 32, "elementwise"),
        ("aten::eq", ((8, 4), (8, 1)), (F32, F32), (), 4 * (32 + 8) + 32, "elementwise"),
        ("aten::native_dropout", ((8, 4), (), ()), (F32, "Scalar", "Scalar"), (), 32 * (4 + 4 + 1), "elementwise"),
        ("aten::fill_", ((8, 4), ()), (F32, "Scalar"), (), 128, "elementwise"),
        ("aten::copy_", ((8, 4), (8, 4)), (F32, BF16), (), 128 + 64, "copy"),
        ("aten::sum", ((8, 4), (), ()), (F32, "", ""), ("", "[0]", "False"), 4 * (32 + 4), "reduction"),
        ("aten::mean", ((8, 4), (), ()), (F32, "", ""), ("", "[-1]", "True"), 4 * (32 + 8), "reduction"),
        ("aten::sum", ((8, 4), ()), (F32, ""), ("", ""), 4 * 33, "reduction"),
        ("aten::max", ((8, 4), (), ()), (F32, "", ""), ("", "1", "False"), 4 * 32 + 8 * 12, "reduction"),
        ("aten::_softmax", ((8, 4), (), ()), (F32, "Scalar", "Scalar"), (), 256, "softmax"),
        ("aten::_softmax_backward_data", ((8, 4), (8, 4)), (F32, F32), (), 384, "softmax"),
        ("aten::native_layer_norm", ((8, 4), (), (4,), (4,)), (F32, "", F32, F32), (), 4 * 72, "normalization"),
        (
            "aten::native_layer_norm_backward",
            ((8, 4), (8, 4), (), (8, 1), (8, 1), (4,), (4,)),
            (F32, F32, "", F32, F32, F32, F32),
            (),
            4 * (32 + 32 + 8 + 8 + 4 + 4 + 32 + 8),
            "normalization",
        ),
        ("aten::embedding", ((100, 16), (3, 5)), (F32, I64), (), 15 * 8 + 2 * 15 * 64, "embedding"),
        (
            "aten::embedding_dense_backward",
            ((3, 5, 16), (3, 5), ()),
            (F32, I64, "Scalar"),
            ("", "", "100"),
            15 * 64 + 15 * 8 + 100 * 64,
            "embedding",
        ),
        ("aten::index_select", ((10, 4), (), (3,)), (F32, "Scalar", I64), ("", "0", ""), 24 + 2 * 48, "embedding"),
        ("aten::gather", ((10, 4), (), (3, 4)), (F32, "Scalar", I64), ("", "0", ""), 96 + 96, "embedding"),
    ],
)
def test_bytes_are_those_of_inputs_and_outputs(
    name: str, dims: tuple[Any, ...], dtypes: tuple[str, ...], concrete: tuple[str, ...], expected: int, kind: str
) -> None:
    """Each tensor once, a result in the common type of its inputs; FLOPs are left open."""
    found = cost(OperatorCall(name, dims, dtypes, concrete))

    assert found is not None
    assert (expected, None, kind) == (found.bytes, found.flops, found.kind)


TYPES = {
    "bool": torch.bool,
    "signed char": torch.int8,
    "long int": torch.int64,
    "c10::BFloat16": torch.bfloat16,
    "float": torch.float,
    "c10::complex<float>": torch.complex64,
}
NUMBERS = {"bool": True, "long int": 2, "double": 0.5, "c10::complex<double>": 1j}


@pytest.mark.parametrize("name", TYPES)
def test_results_have_the_type_of_torchs_promotion(name: str) -> None:
    """With a tensor of each other type, with a scalar tensor of it, and with Python's numbers."""
    tensor = torch.ones(6, dtype=TYPES[name])
    for other, dtype in TYPES.items():
        for dims in ((6,), ()):
            scalar = torch.ones(dims, dtype=dtype)
            assert _moved(tensor, scalar, scalar.nbytes) == _bytes(name, other, dims)
    for other, number in NUMBERS.items():
        assert _moved(tensor, number, ITEM_BYTES[other]) == _bytes(name, other, ())


def _bytes(name: str, other: str, dims: tuple[int, ...]) -> int | None:
    found = cost(OperatorCall("aten::mul", ((6,), dims), (name, other)))
    return None if found is None else found.bytes


def _moved(tensor: torch.Tensor, other: Any, size: int) -> int | None:
    """Return the bytes that a product by torch's types moves; None for those in which versions of torch differ."""
    result = torch.result_type(tensor, other)
    unlike = tensor.dtype == torch.bfloat16 and result.is_complex and (not getattr(other, "ndim", 0))
    return None if unlike else 6 * tensor.itemsize + size + 6 * result.itemsize


def test_a_half_and_a_complex_number_make_a_complex_half() -> None:
    """Of four bytes an element, in every version of torch."""
    half = torch.ones(6, dtype=torch.half)
    for other in ("c10::complex<float>", "c10::complex<double>"):
        assert _moved(half, 1j, ITEM_BYTES[other]) == _bytes("c10::Half", other, ())


@pytest.mark.parametrize("name", ["aten::_foreach_add_", "aten::cat", "aten::add_", "aten::mul", "aten::sum"])
def test_lists_of_tensors_have_no_bytes(name: str) -> None:
    """The types in a list are not recorded, and long lists not even with sizes."""
    for dims in (((), ()), (((8, 4), (4,)), ((8, 4), (4,)))):
        assert cost(OperatorCall(name, dims, ("TensorList", "TensorList"))) is None
