"""Experts and the ranks that hold them."""

from __future__ import annotations

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.validation import check_expert_ranks, check_experts, check_ranks


@pytest.mark.parametrize(
    ("experts", "top_k", "ranks", "says"),
    [(8, 2, 3, "8 must be divisible by 3 ranks; try 9"), (2, 3, 2, "3 is more than the 2 experts")],
)
def test_experts_that_cannot_be_shared_out_are_refused(experts: int, top_k: int, ranks: int, says: str) -> None:
    """The message suggests a number of experts."""
    check_experts({"experts": 8, "top_k": 2}, 4)
    with pytest.raises(UsageError, match=says):
        check_experts({"experts": experts, "top_k": top_k}, ranks)


def test_all_ranks_with_other_tokens_share_out_the_experts() -> None:
    """Unless --ep says otherwise: eight ranks with two stages of two ranks each have two parts of the batch."""
    options = {"model": "gpt-tiny", "batch_size": 64, "tp": 2, "pp": 2, "micro_batches": None, "ep": None}
    options |= {"experts": 8, "top_k": 2}
    check_ranks("4d", options, 8)

    assert (2, 8) == (options["ep"], options["micro_batches"])
    assert 1 == check_expert_ranks({"tp": 2, "pp": 2, "ep": 1}, 8)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"ep": 3}, "--ep 3: 8 ranks with --tp 2 and --pp 1 split the batch into 4; try --ep 1 or 2 or 4"),
        ({"experts": 6}, "--experts 6 must be divisible by 4 ranks; try 8"),
        ({"tp": 8}, "--tp"),
        ({"batch_size": 6}, "--batch-size 6"),
    ],
)
def test_a_mesh_with_experts_that_does_not_divide_is_refused(changed: dict[str, int], says: str) -> None:
    """The message suggests what does."""
    options = {"model": "gpt-tiny", "batch_size": 64, "tp": 2, "pp": 1, "micro_batches": 1, "ep": None}
    with pytest.raises(UsageError, match=says):
        check_ranks("4d", options | {"experts": 8, "top_k": 2} | changed, 8)
