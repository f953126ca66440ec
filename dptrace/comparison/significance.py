"""Decide whether two sides of a comparison differ by more than noise, or whether that cannot be decided.

The noise is that of :mod:`dptrace.comparison.step_noise`. Many figures are judged at once: Holm's correction
(Scandinavian Journal of Statistics, 1979), weighted, so that the wall time gets half of the false alarms and all other
figures the other half. A figure is called unchanged only where its interval lies within a margin (two one-sided tests,
Schuirmann 1987).

A few steps do not show their noise, but some differences are evident: each step of one side takes longer than each of
the other, by much more than steps of a side differ. If sides did not matter, 3 and 3 steps would fall apart in
that way in at most 1 of 10 divisions (4 and 4 in 1 of 35), and only if steps had two lengths by themselves.
docs/guides/compare.md has the rates of false alarms and of changes found; benchmarks/diff_noise.py measures them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dptrace.comparison.step_noise import FEWEST_FREE, Float, Noise, Steps, drifts, noise_of
from dptrace.core.intervals import Int64

__all__ = [
    "ALPHA",
    "EQUIVALENT",
    "FEWEST_EVIDENT",
    "FEWEST_FOR_OUTLIERS",
    "FEWEST_STEPS",
    "FIGURES_ALPHA",
    "TRANSFERS_ALPHA",
    "WAITS_ALPHA",
    "Float",
    "Judgement",
    "Verdict",
    "has_enough_steps",
    "holm",
    "inlier_steps",
    "judge",
    "standard_deviation",
]

Verdict = str
"""``same``, ``within noise``, ``beyond noise`` or ``cannot tell``."""

ALPHA = 0.05
"""Rate at which two recordings of the same job may be called different, in any figure."""
EQUIVALENT, EQUIVALENT_SHARE = 0.03, 0.1
"""A figure is called unchanged only if its 95 % interval excludes a change by more than 3 % of the step, and by more
than a tenth of itself."""
FEWEST_STEPS = 4
"""Steps that each side needs to estimate noise."""
FEWEST_EVIDENT = 3
"""Steps that each side needs for what is evident."""
_MANY = 6
_EVIDENT_MARGINS, _EVIDENT_MARGINS_OF_MANY = 14, 7
"""A difference is evident only if the sides' medians lie apart by this many margins (42 % of a step; 21 % where each
side has six steps or more), and the sides themselves by"""
_EVIDENT_SPREADS, _EVIDENT_SPREADS_OF_MANY = 3, 1.5
"""this many times as far as a step of either lies from its median towards the other side."""
FIGURES_ALPHA, TRANSFERS_ALPHA, WAITS_ALPHA = 0.03, 0.015, 0.005
"""The parts of ALPHA for the figures of a step, for the transfers of collectives and for waiting, each on its own."""
_ROUNDING = 1e-12
"""Share of a figure that sums of floats lose."""
_POWER_Z = 0.8416
"""Quantile of the normal distribution at 80 %: the power that :attr:`Judgement.detectable` refers to."""

_MAD_TO_STANDARD_DEVIATION = 1.4826
"""Ratio of the standard deviation to the median absolute deviation of a normal distribution."""
_OUTLIER_DEVIATIONS, _OUTLIER_SHARE = 5.0, 0.05
FEWEST_FOR_OUTLIERS = 5
"""Steps below which none is an outlier."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one difference."""

    verdict: Verdict
    p: float | None
    """Rate at which noise alone makes as large a difference, corrected for the number of figures; None if unknown."""
    low: float | None = None
    high: float | None = None
    """95 % interval of the difference; None with too few steps."""
    detectable: float | None = None
    """Difference that would be called beyond noise in 80 % of such comparisons; None with too few steps."""
    drifts: bool = False
    """Whether the steps of a recording drift by more than the difference, so that it can't be attributed."""


def inlier_steps(walls: Float) -> NDArray[np.bool_]:
    """Return which steps have a length like the others'.

    An outlier is further from the median than 5 robust standard deviations (from the median absolute deviation) and
    than 5 %, such as a first step that warms up or a step that writes a checkpoint. All steps are kept where more than
    a quarter would be outliers, since that is a pattern, and where there are fewer than 5 steps.
    """
    if len(walls) < FEWEST_FOR_OUTLIERS:
        return np.ones(len(walls), np.bool_)
    median = float(np.median(walls))
    deviation = np.abs(walls - median)
    robust_deviation = _MAD_TO_STANDARD_DEVIATION * float(np.median(deviation))
    kept: NDArray[np.bool_] = deviation <= max(_OUTLIER_DEVIATIONS * robust_deviation, _OUTLIER_SHARE * median)
    return kept if (~kept).sum() <= len(walls) // 4 else np.ones(len(walls), np.bool_)


def standard_deviation(values: Float) -> float | None:
    """Return the standard deviation of steps; None for a single step."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def has_enough_steps(steps_a: int, steps_b: int) -> bool:
    """Return whether a claim is allowed at all.

    >>> has_enough_steps(3, 3), has_enough_steps(4, 4), has_enough_steps(1, 100)
    (False, True, False)
    """
    return min(steps_a, steps_b) >= FEWEST_STEPS


def holm(p: Float, weights: Float) -> Float:
    """Correct p-values for the number of figures (weighted Holm): each p is compared with ALPHA times its share.

    Sorted by p / weight, the k-th is multiplied by the weights from k on, over its own; then made ascending.
    """
    order = np.argsort(p / weights, kind="stable")
    left = np.cumsum(weights[order][::-1])[::-1]
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * left / weights[order]), 1)
    return corrected


def judge(
    values: Float,
    steps: Steps,
    floor: float,
    margin: float,
    alpha: float = ALPHA,
    shares: Float | None = None,
    kind_weights: Float | None = None,
) -> list[Judgement]:
    """Judge the difference of each figure of a family, whose figures may be correlated.

    A difference is ``same`` up to *floor*, ``beyond noise`` where its corrected p-value is at most *alpha*,
    ``within noise`` where its 95 % interval excludes a change that matters, and otherwise ``cannot tell``. What
    one side has in every step and the other in none, and what is evident, is ``beyond noise`` without a test; then its
    p-value is None.

    Args:
        values: figures by steps.
        steps: what each step is.
        floor: resolution of the measurement, in the figures' unit.
        margin: difference that does not matter, in the figures' unit; nor does EQUIVALENT_SHARE of a figure, if less.
        alpha: rate at which noise alone may have any figure of the family called different.
        shares: part of *alpha* that each figure gets; by default the same.
        kind_weights: weight of each kind of step; by default its share of the steps.
    """
    weights = steps.kind_weights() if kind_weights is None else kind_weights
    contrast = steps.step_weights(weights) * np.where(steps.side, 1, -1)
    delta = values @ contrast
    larger = np.maximum(np.abs(values @ (contrast * (steps.side == 0))), np.abs(values @ (contrast * steps.side)))
    delta[np.abs(delta) <= _ROUNDING * larger] = 0
    evident = _evident(values, steps, contrast, margin)
    if not steps.enough or steps.free < FEWEST_FREE:
        verdicts = np.where(evident, "beyond noise", np.where(np.abs(delta) <= floor, "same", "cannot tell"))
        return [Judgement(verdict, None) for verdict in verdicts.tolist()]
    noise = noise_of(values, steps, contrast)
    present = values.any(axis=1)
    given = (np.ones(len(values)) if shares is None else shares)[present]
    corrected, level = np.ones(len(values)), np.full(len(values), alpha)
    corrected[present] = np.minimum(holm(noise.tail(np.abs(delta))[present], given) * ALPHA / alpha, 1)
    level[present] = alpha * given / given.sum()
    new = _new(values, steps.side, contrast, floor)
    drifting = drifts(values, steps, delta) & ~new
    margins = np.maximum(np.minimum(margin, EQUIVALENT_SHARE * larger), floor)
    found = _judgements(delta, noise, corrected, level, drifting, new, margins, floor)
    return [
        replace(one, verdict="beyond noise", p=None, drifts=False) if clear and one.verdict != "beyond noise" else one
        for one, clear in zip(found, evident.tolist(), strict=True)
    ]


def _evident(values: Float, steps: Steps, contrast: Float, margin: float) -> NDArray[np.bool_]:
    """Return which figures differ so much that no test is needed."""
    a, b = (values[:, (steps.side == side) & (contrast != 0)] for side in (0, 1))
    if not steps.comparable or min(a.shape[1], b.shape[1]) < FEWEST_EVIDENT:
        return np.zeros(len(values), np.bool_)
    many = min(a.shape[1], b.shape[1]) >= _MANY
    margins = margin * (_EVIDENT_MARGINS_OF_MANY if many else _EVIDENT_MARGINS)
    spreads = _EVIDENT_SPREADS_OF_MANY if many else _EVIDENT_SPREADS
    clear = np.zeros(len(values), np.bool_)
    for low, high in ((a, b), (b, a)):
        middle = np.median(low, axis=1), np.median(high, axis=1)
        spread = np.maximum(low.max(axis=1) - middle[0], middle[1] - high.min(axis=1))
        apart = high.min(axis=1) - low.max(axis=1)
        clear |= (apart > spreads * spread) & (middle[1] - middle[0] > margins)
    return clear


def _new(values: Float, side: Int64, contrast: Float, floor: float) -> NDArray[np.bool_]:
    """Return which figures one side has in every step, above the floor, and the other in none."""
    sides = [values[:, (side == one) & (contrast != 0)] for one in (0, 1)]
    none = [~one.any(axis=1) for one in sides]
    every = [(one > floor).all(axis=1) for one in sides]
    new: NDArray[np.bool_] = np.logical_or(none[0] & every[1], none[1] & every[0])
    return new


def _judgements(
    delta: Float,
    noise: Noise,
    p: Float,
    level: Float,
    drifting: NDArray[np.bool_],
    new: NDArray[np.bool_],
    margin: Float,
    floor: float,
) -> list[Judgement]:
    half = noise.half_width(np.full(len(delta), ALPHA))
    detectable = noise.half_width(level) + _POWER_Z * (noise.weight * noise.error).sum(axis=0)
    moved = ((p <= ALPHA) | new) & (np.abs(delta) > floor)
    verdicts = np.where(np.abs(delta) + half <= margin, "within noise", "cannot tell")
    verdicts = np.where(moved & ~drifting, "beyond noise", np.where(moved, "cannot tell", verdicts))
    verdicts = np.where(np.abs(delta) <= floor, np.where((delta == 0) | (half <= margin), "same", verdicts), verdicts)
    columns = (p, delta - half, delta + half, np.maximum(detectable, floor), moved & drifting)
    rows = zip(verdicts.tolist(), *(column.tolist() for column in columns), strict=True)
    return [Judgement(row[0], None) if is_new else Judgement(*row) for row, is_new in zip(rows, new, strict=True)]
