"""How MFU changed. A step's FLOPs and its GPU's peak do not vary, so the noise is that of the wall time."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import numpy as np

from dptrace.comparison.changes import Change
from dptrace.comparison.sides import Side, Sides
from dptrace.comparison.significance import Verdict

__all__ = ["mfu_change"]

_EQUAL = 1e-9


def mfu_change(sides: Sides, wall: Change) -> Change | None:
    """Compare MFU, in percent; None where it is not known of every recording.

    Args:
        wall: the change of the wall time.
    """
    a, b = _ideal_ns(sides.a), _ideal_ns(sides.b)
    if a is None or b is None or not wall.a or not wall.b:
        return None
    before = 100 * a / wall.a
    low = None if wall.high is None else 100 * b / (wall.a + wall.high) - before
    high = None if wall.low is None or wall.a + wall.low <= 0 else 100 * b / (wall.a + wall.low) - before
    return replace(
        wall,
        name="mfu_percent",
        a=before,
        b=100 * b / wall.b,
        a_median=100 * a / wall.a_median if wall.a_median else before,
        b_median=100 * b / wall.b_median if wall.b_median else 100 * b / wall.b,
        a_step_spread=None,
        b_step_spread=None,
        a_rank_spread=None,
        b_rank_spread=None,
        verdict=_verdict(wall, a, b, low, high),
        low=low,
        high=high,
        detectable=None if wall.detectable is None else before * wall.detectable / wall.a,
    )


def _verdict(wall: Change, a: float, b: float, low: float | None, high: float | None) -> Verdict:
    """Return the wall time's verdict for equal work; else whether the interval excludes no change."""
    if abs(a - b) <= _EQUAL * a:
        return wall.verdict
    if low is None or high is None:
        return "cannot tell"
    return "beyond noise" if low > 0 or high < 0 else "within noise"


def _ideal_ns(side: Side) -> float | None:
    """Return how long a step would take at the GPU's peak, in ns: MFU times the wall time."""
    ideal = []
    for sample in side.samples:
        mfu = sample.run.efficiency.mfu
        if mfu is None:
            return None
        walls = np.concatenate([device.split.figures["wall_ns"] for device in sample.run.devices])
        ideal.append(mfu * float(walls.mean()))
    return fmean(ideal) if ideal else None
