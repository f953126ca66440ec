"""Decide whether two runs differ by more than the noise of their steps, or whether that cannot be decided.

The samples are steps, each the mean of its ranks, since the ranks of a step wait for each other. Two recordings of the
same job could have swapped any of their steps, so a difference is judged by how often such a swap produces one at least
as large (a permutation test). Docs: docs/diff.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ALPHA",
    "FEWEST_STEPS",
    "Float",
    "Judgement",
    "Verdict",
    "has_enough_steps",
    "judge",
    "standard_deviation",
    "steady",
]

Float = NDArray[np.float64]
Verdict = str
"""``same``, ``within noise``, ``beyond noise`` or ``cannot tell``."""

ALPHA = 0.05
"""Rate at which two recordings of the same job may be called different."""
FEWEST_STEPS = 3
"""Steps that each run needs for any claim."""
_MAX_EXACT_SWAPS, _DRAWN_SWAPS = 20_000, 4_999
"""Swaps that are all evaluated; beyond that number, a sample of swaps is drawn."""

_MAD_TO_STANDARD_DEVIATION = 1.4826
"""Ratio of the standard deviation to the median absolute deviation of a normal distribution."""
_UNCORRECTED = 2
"""Standard deviations of steps that a difference must exceed where too few swaps allow no correction."""
_OUTLIER_DEVIATIONS, _OUTLIER_SHARE, _FEWEST_FOR_OUTLIERS = 5.0, 0.05, 5


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one difference."""

    verdict: Verdict
    p: float | None
    """How often swapped steps differ as much; None with too few steps."""


def steady(walls: Float) -> NDArray[np.bool_]:
    """Return which steps have a length like the others'.

    An outlier is further from the median than 5 robust standard deviations (from the median absolute deviation) and
    than 5 %, such as a first step that warms up or a step that writes a checkpoint. All steps are kept where more than
    a quarter would be outliers, since that is a pattern, and where there are fewer than 5 steps.
    """
    if len(walls) < _FEWEST_FOR_OUTLIERS:
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
    """Return whether any difference could be significant: with 3 steps each, one swap in ten is the most extreme.

    >>> has_enough_steps(3, 3), has_enough_steps(3, 4), has_enough_steps(4, 4), has_enough_steps(1, 100)
    (False, True, True, False)
    """
    most_extreme = 2 if steps_a == steps_b else 1
    swaps = comb(steps_a + steps_b, steps_a)
    return min(steps_a, steps_b) >= FEWEST_STEPS and most_extreme <= ALPHA * swaps


def judge(a: Float, b: Float, floor: float) -> list[Judgement]:
    """Judge the differences of a family of figures, which may be correlated.

    A difference is ``same`` below *floor*. It is ``beyond noise`` when all of these hold: the runs as a whole differ
    (so that no figure among many is named by chance), it is rarer than ALPHA among swaps of steps, corrected for the
    number of figures, and it is larger than the steps' standard deviation, an estimate of how two starts vary.
    With few steps there are too few swaps for the correction (a dozen figures need 6 steps each): then the difference
    must be larger than two standard deviations instead.

    Args:
        a, b: a row for each figure, a column for each step; the two may have different numbers of steps.
        floor: resolution of the measurement, in the figures' unit.
    """
    delta = np.abs(b.mean(axis=1) - a.mean(axis=1))
    noise = _pooled(a, b)
    resolved = delta > floor
    if not has_enough_steps(a.shape[1], b.shape[1]):
        few = [
            "same" if not above else "within noise" if deviation is not None and size <= deviation else "cannot tell"
            for above, size, deviation in zip(resolved, delta, noise, strict=True)
        ]
        return [Judgement(verdict, None) for verdict in few]
    overall, each, rarest = _permuted(a, b, floor)
    correctable = rarest * max(int(resolved.sum()), 1) <= ALPHA
    each = _corrected(each, resolved) if correctable else each
    least = np.array(noise, np.float64) * (1 if correctable else _UNCORRECTED)
    beyond = resolved & (overall <= ALPHA) & (each <= ALPHA) & (delta > least)
    verdicts = np.where(beyond, "beyond noise", np.where(resolved, "within noise", "same"))
    return [Judgement(str(verdict), float(p)) for verdict, p in zip(verdicts, each, strict=True)]


def _pooled(a: Float, b: Float) -> list[float | None]:
    """Return the standard deviation of steps within their run, for each figure; None for single steps."""
    free = a.shape[1] + b.shape[1] - 2
    if free < 1:
        return [None] * len(a)
    squares = sum(((x - x.mean(axis=1, keepdims=True)) ** 2).sum(axis=1) for x in (a, b))
    return [float(value) for value in np.sqrt(squares / free)]


def _permuted(a: Float, b: Float, floor: float) -> tuple[float, Float, float]:
    """Return how often a swap makes the whole runs differ as much, how often each figure, and the lowest possible rate.

    Whole runs are compared by the likelihood ratio of "two means" against "one mean", summed over the figures.
    """
    both = np.concatenate((a, b), axis=1)
    rounding = 1e-12 * np.abs(both).sum(axis=1)
    both = both - both.mean(axis=1, keepdims=True)
    members = _memberships(a.shape[1], both.shape[1])
    weight = 1 / a.shape[1] + 1 / b.shape[1]
    sums = members @ both.T
    whole = (both**2).sum(axis=1) + both.shape[1] * floor**2
    explained = sums**2 * weight / np.where(whole > 0, whole, 1)
    ratio = -np.log1p(-np.minimum(explained, 1 - 1e-12)).sum(axis=1)
    # The first membership is the recorded one.
    overall = float((ratio >= ratio[0] - 1e-9).mean())
    size = np.abs(sums)
    rarest = (2 if a.shape[1] == b.shape[1] and len(members) != _DRAWN_SWAPS + 1 else 1) / len(members)
    return overall, (size >= size[0] - rounding).mean(axis=0), rarest


def _corrected(each: Float, resolved: NDArray[np.bool_]) -> Float:
    """Correct for the number of figures that are judged (Holm)."""
    order = np.argsort(np.where(resolved, each, 2), kind="stable")
    factors = np.maximum(int(resolved.sum()) - np.arange(len(each)), 1)
    corrected = np.empty_like(each)
    corrected[order] = np.minimum(np.maximum.accumulate(each[order] * factors), 1)
    return corrected


@lru_cache(maxsize=8)
def _memberships(first: int, count: int) -> Float:
    """Return the ways of choosing *first* of *count* steps as rows of 0 and 1, the recorded one at the top."""
    if comb(count, first) <= _MAX_EXACT_SWAPS:
        chosen = np.array(list(combinations(range(count), first)))
    else:
        draw = np.random.default_rng(0)
        drawn = np.argsort(draw.random((_DRAWN_SWAPS, count)), axis=1)[:, :first]
        chosen = np.concatenate((np.arange(first)[None], drawn))
    members = np.zeros((len(chosen), count))
    members[np.arange(len(chosen))[:, None], chosen] = 1
    return members
