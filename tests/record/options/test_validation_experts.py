"""What a mixture of experts may be asked for."""

from __future__ import annotations

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.validation import check_experts


@pytest.mark.parametrize(
    ("experts", "top_k", "ranks", "says"),
    [(8, 2, 3, "8 does not divide over 3 ranks; 9 would"), (2, 3, 2, "there are 2 experts")],
)
def test_experts_that_cannot_be_shared_out_are_refused(experts: int, top_k: int, ranks: int, says: str) -> None:
    """Before any process starts."""
    check_experts({"experts": None, "top_k": None}, 4)
    with pytest.raises(UsageError, match=says):
        check_experts({"experts": experts, "top_k": top_k}, ranks)
