"""What a mixture of experts may be asked for, and what must divide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dptrace.errors import UsageError

__all__ = ["EXPERTS", "TOP_K", "check_experts"]

EXPERTS, TOP_K = 8, 2
"""Experts of a block on all ranks together, and how many of them a token is sent to, unless told otherwise."""


def check_experts(options: Mapping[str, Any], ranks: int) -> None:
    """Refuse before any process starts what can't be shared out.

    Args:
        options: by the names of their attributes; None for what was not given.

    Raises:
        UsageError: the message says what would do.
    """
    experts, top_k = options["experts"] or EXPERTS, options["top_k"] or TOP_K
    if experts % ranks:
        above = (experts // ranks + 1) * ranks
        raise UsageError(f"--experts {experts} does not divide over {ranks} ranks; {above} would.")
    if not top_k <= experts:
        raise UsageError(f"--top-k {top_k}: there are {experts} experts of a block; --experts N gives more.")
