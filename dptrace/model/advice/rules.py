"""Thresholds of the documents on distributed training, each with the place that it comes from.

Where a document's rule contradicts its own formula, ``note`` has the right value.
"""

from __future__ import annotations

import msgspec

__all__ = ["RULES", "Rule"]


class Rule(msgspec.Struct, frozen=True):
    """A threshold, where it stands, and what is wrong with it."""

    value: float
    source: str
    note: str = ""


_GUIDE = "Distributed Training (guide)"
_DDP = "Data Parallel & DDP"

RULES = {
    "replicate": Rule(0.0, f"{_DDP}, 'When DDP wins'; {_GUIDE}, 7.7"),
    "stages": Rule(
        0.0,
        f"{_GUIDE}, 8.6",
        "The guide counts 18 bytes a parameter in its table of stages; weights, gradients and Adam's state are 16.",
    ),
    "small": Rule(10e9, f"{_GUIDE}, 12.5"),
    "large": Rule(100e9, f"{_GUIDE}, 12.5"),
    "tensor_link": Rule(600e9, f"{_GUIDE}, 9.4 and 12.5", "600 GB/s count both directions: 300 GB/s each way."),
    "few_gpus": Rule(32, f"{_DDP}, 'Cost model'"),
    "ridge": Rule(1.2, f"{_GUIDE}, 6.6"),
    "micro_batches": Rule(
        4, f"{_GUIDE}, 10.8", "M ≥ 4·P leaves a bubble of up to 20 %; below 10 % needs 9·(P−1) micro-batches."
    ),
    "bubble": Rule(0.1, f"{_GUIDE}, 12.5"),
    "mfu": Rule(0.4, f"{_GUIDE}, 12.5"),
    "overlap": Rule(0.8, f"{_GUIDE}, 12.5"),
    "efficiency": Rule(0.7, f"{_DDP}, 'TL;DR'"),
}
"""The rules by name."""
