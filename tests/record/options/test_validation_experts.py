"""Experts and the ranks that hold them."""

from __future__ import annotations

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.validation import check_experts


@pytest.mark.parametrize(
    ("experts", "top_k", "ranks", "says"),
    [(8, 2, 3, "8 must be divisible by 3 ranks; try 9"), (2, 3, 2, "3 is more than the 2 experts")],
)
def test_experts_that_cannot_be_shared_out_are_refused(experts: int, top_k: int, ranks: int, says: str) -> None:
    """The message suggests a number of experts."""
    check_experts({"experts": 8, "top_k": 2}, 4)
    with pytest.raises(UsageError, match=says):
        check_experts({"experts": experts, "top_k": top_k}, ranks)
