"""Which operators have formulas, and which take the kernels below them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.model.flops import attention, convolution, matmul, pointwise
from dptrace.model.flops.costs import OperatorCall, cost, owns_kernels, owns_without_parts

NAMES = sorted({*matmul.FORMULAS, *matmul.OF_PARTS, *convolution.FORMULAS, *attention.FORMULAS, *pointwise.FORMULAS})
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
