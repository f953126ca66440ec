"""FLOPs and bytes of fused attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.model.attention import attended_pairs
from dptrace.model.operator_costs import Cost, OperatorCall, cost

BF16 = "c10::BFloat16"
SDPA = "aten::_scaled_dot_product_"


def attention(name: str, dims: Sequence[tuple[int, ...]], at: dict[int, str]) -> Cost:
    """Return the cost of a call with the tensors *dims* first and the values *at* their positions."""
    count = max([len(dims) - 1, *at]) + 1
    padded: tuple[Any, ...] = (*dims, *[()] * (count - len(dims)))
    texts = tuple(at.get(index, "") for index in range(count))
    found = cost(OperatorCall(name, padded, (BF16,) * len(dims), texts))
    assert found is not None
    return found


def test_a_forward_is_two_products() -> None:
    """2 batches, 3 heads, 5 queries, 7 keys, d = 4: 2 × 2·(2·3)·5·7·4 operations."""
    found = attention(f"{SDPA}flash_attention", [(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4)], {3: "0.", 4: "False"})

    assert 2 * 2 * 6 * 35 * 4 == found.flops == found.counted_flops == found.model_flops
    assert 2 * 6 * (5 * 4 + 7 * 4 + 7 * 4 + 5 * 4) == found.bytes


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("flash_attention", 4),
        ("flash_attention_for_cpu", 4),
        ("efficient_attention", 6),
        ("cudnn_attention", 6),
        ("fused_attention_overrideable", 5),
    ],
)
def test_a_causal_mask_halves_what_is_computed(name: str, at: int) -> None:
    """Each backend has the flag at its own place; torch's counter counts the whole square."""
    square = [(1, 2, 8, 4)] * 3

    found = attention(SDPA + name, square, {at: "True"})

    assert (found.counted_flops, True) == (2 * (found.flops or 0), found.causal)
    assert attention(SDPA + name, square, {at: "False"}).flops == found.counted_flops


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("flash_attention_backward", 11),
        ("flash_attention_for_cpu_backward", 7),
        ("efficient_attention_backward", 11),
        ("cudnn_attention_backward", 14),
        ("fused_attention_overrideable_backward", 13),
    ],
)
def test_a_backward_is_five_products_of_which_the_model_needs_four(name: str, at: int) -> None:
    """Q·Kᵀ is computed again, which is recomputation: HFU counts it, MFU does not."""
    forward = attention(f"{SDPA}flash_attention", [(1, 2, 8, 4)] * 3, {4: "False"}).flops or 0

    found = attention(SDPA + name, [(1, 2, 8, 4)] * 4, {at: "True"})

    assert (5 * forward // 2, 2 * forward) == (found.counted_flops, found.model_flops)
    assert found.counted_flops == 2 * (found.flops or 0)


def test_grouped_heads_save_bytes_but_no_operations() -> None:
    """8 heads of Q share 2 of K and V."""
    grouped = attention(f"{SDPA}flash_attention", [(1, 8, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4)], {4: "False"})

    assert 2 * 2 * 8 * 25 * 4 == grouped.flops
    assert 2 * (8 * 5 * 8 + 2 * 5 * 8) == grouped.bytes


def test_values_may_have_another_width() -> None:
    """d = 4 for Q and K, 6 for V."""
    found = attention(f"{SDPA}efficient_attention", [(1, 1, 5, 4), (1, 1, 5, 4), (1, 1, 5, 6)], {6: "False"})

    assert 2 * 25 * (4 + 6) == found.flops


def test_flash_attn_has_the_length_before_the_heads() -> None:
    """[batch, length, heads, d], and an operator of its own for forward and backward."""
    forward = attention("flash_attn::_flash_attn_forward", [(2, 16, 3, 4)] * 3, {5: "True", 6: "-1", 7: "-1"})
    backward = attention("flash_attn::_flash_attn_backward", [(2, 16, 3, 4)] * 4, {11: "True"})

    assert 2 * 2 * (2 * 3) * 256 * 4 // 2 == forward.flops
    assert 5 * (forward.flops or 0) // 2 == backward.flops


def test_one_sequence_of_a_packed_batch_is_exact() -> None:
    """Two offsets are one sequence; three sequences of the longest length fill the batch."""
    one = attention(
        "flash_attn::_flash_attn_varlen_forward", [(12, 3, 4)] * 3 + [(2,)] * 2, {5: "12", 6: "12", 9: "False"}
    )
    three = attention(
        "flash_attn::_flash_attn_varlen_forward", [(12, 3, 4)] * 3 + [(4,)] * 2, {5: "4", 6: "4", 9: "False"}
    )

    assert (4 * 3 * 144 * 4, True) == (one.flops, one.exact)
    assert (4 * 3 * (3 * 16) * 4, True) == (three.flops, three.exact)


def test_sequences_of_unknown_lengths_give_a_lower_bound() -> None:
    """12 tokens in 3 sequences, the longest of 8: at least 8² + 2 · 2² pairs."""
    found = attention(
        "flash_attn::_flash_attn_varlen_forward", [(12, 3, 4)] * 3 + [(4,)] * 2, {5: "8", 6: "8", 9: "False"}
    )

    assert (4 * 3 * (64 + 2 * 4) * 4, False) == (found.flops, found.exact)


def test_a_window_leaves_few_keys() -> None:
    """Of 1,024 causal queries, each sees 128 keys, the first ones fewer."""
    found = attention("flash_attn_3::fwd", [(1, 1024, 1, 4)] * 3, {24: "True", 25: "128", 26: "0"})

    assert 4 * 4 * (1024 * 128 - 128 * 128 // 2) == found.flops


@pytest.mark.heavy
@given(
    queries=st.integers(1, 12),
    keys=st.integers(1, 12),
    left=st.integers(-1, 14),
    right=st.integers(-1, 14),
    last=st.booleans(),
)
def test_attended_pairs_are_the_area_under_the_mask(queries: int, keys: int, left: int, right: int, last: bool) -> None:
    """A count on a grid four times finer, cells on an edge half, is the same area."""
    fine = 4
    shift = keys - queries if last else 0
    area = 0.0
    for i in range(queries * fine):
        for j in range(keys * fine):
            # Twice the distance of the cell from the diagonal, in cells: an edge passes through cells of distance 0.
            distance = j - i - shift * fine
            above = 1.0 if right < 0 else 0.5 + 0.5 * ((right * fine > distance) - (right * fine < distance))
            below = 1.0 if left < 0 else 0.5 + 0.5 * ((distance > -left * fine) - (distance < -left * fine))
            area += max(0.0, above + below - 1)

    assert pytest.approx(2 * area / fine**2) == attended_pairs(queries, keys, left, right, last)


def test_a_layout_that_is_not_known_has_no_cost() -> None:
    """Nested tensors are recorded without sizes."""
    assert cost(OperatorCall(f"{SDPA}flash_attention", ((), (), ()), (BF16,) * 3, ("",) * 3)) is None
    assert cost(OperatorCall(f"{SDPA}flash_attention", ((1, 2, 3, 4), (1, 2), (1, 2)), (BF16,) * 3)) is None
