"""How far predictions are off, by the kind of training: from the runs of docs/published.csv, with their layouts.

``python docs/make_published.py`` writes the runs and prints these figures; a test compares both.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dptrace.model.training.memory import PRECISIONS
from dptrace.model.training.plan import Plan
from dptrace.model.training.shape import LayerStack

LONG_SAMPLE = 16_384
"""Tokens of a sample from which attention takes so much that the run is of a kind of its own."""


class Kind(msgspec.Struct, frozen=True):
    """Published trainings of one kind, and how their steps compare with the predicted ones."""

    name: str
    runs: int
    median: float
    """Of the relative errors' sizes."""
    low: float
    """Published over predicted by constants that the run's source had no part in: of ten runs, eight are between *low*
    and *high*."""
    high: float
    left_out: float
    """The median error of these predictions."""


KINDS = {
    kind.name: kind
    for kind in (
        Kind("dense in 16 bits", 48, 0.047, 0.89, 1.15, 0.047),
        Kind("dense in float8", 34, 0.107, 0.88, 1.36, 0.094),
        Kind("mixture of experts", 27, 0.169, 0.66, 1.51, 0.199),
        Kind("long samples", 15, 0.143, 0.55, 1.68, 0.419),
    )
}
"""By their names."""


def kind_name(plan: Plan) -> str | None:
    """Return the kind of a training; None where no run of it is published."""
    number_type = PRECISIONS[plan.precision].compute
    if isinstance(plan.shape, LayerStack) or number_type not in ("bf16", "fp16", "fp8"):
        return None
    if plan.shape.experts > 1:
        return "mixture of experts"
    if plan.shape.sequence >= LONG_SAMPLE:
        return "long samples"
    return "dense in float8" if number_type == "fp8" else "dense in 16 bits"


def expected_error(plan: Plan, step_s: float) -> dict[str, Any] | None:
    """Return between which lengths eight of ten runs of its kind would be, of a predicted step; None if unknown."""
    name = kind_name(plan)
    if name is None:
        return None
    kind = KINDS[name]
    return {"kind": name, "runs": kind.runs, "median_error": kind.median, "left_out_error": kind.left_out,
            "low_s": kind.low * step_s, "high_s": kind.high * step_s}  # fmt: skip
