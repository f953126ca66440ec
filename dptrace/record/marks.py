"""Marks in the trace that name the phase of a step."""

from __future__ import annotations

from typing import Literal

from torch.profiler import record_function

__all__ = ["phase"]


def phase(name: Literal["forward", "backward", "optimizer", "other"]) -> record_function:
    """Mark the code inside as one phase of a step. Work on autograd's own threads counts as backward without a mark.

    Raises:
        ValueError: *name* is not a phase.
    """
    if name not in ("forward", "backward", "optimizer", "other"):
        raise ValueError(f"unknown phase {name!r}; choose from forward, backward, optimizer, other")
    return record_function(f"dptrace::{name}")
