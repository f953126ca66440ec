"""The change of each figure between two sides, over all steps and for each kind of step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.comparison.sides import Side, Sides
from dptrace.comparison.significance import (
    FIGURES_ALPHA,
    Judgement,
    Verdict,
    judge,
    standard_deviation,
)
from dptrace.comparison.step_noise import Float

__all__ = [
    "PARTS",
    "Change",
    "KindChanges",
    "changes_of",
    "figure_changes",
    "kind_changes",
    "overlap_change",
    "percent_of",
    "without_claim",
]

PARTS = tuple(name for name in FIGURES if name not in ("overlapped_comm_ns", "wall_ns"))
"""The figures that add up to a step's wall time."""

_MIN_POINTS = 0.5
"""Percentage points below which two overlaps count as the same."""
_POINTS_THAT_DO_NOT_MATTER = 3.0


def percent_of(delta: float, whole: float) -> float | None:
    """Return a difference in percent of *whole*; None for a difference from zero.

    >>> percent_of(5, 100), percent_of(0, 0), percent_of(5, 0)
    (5.0, 0.0, None)
    """
    if not delta:
        return 0.0
    return 100 * delta / whole if whole else None


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of a step in A and in B: means over the compared steps and the ranks, in ns (overlap: in percent).

    Where steps are of several kinds, the means give each kind the same weight on both sides.
    """

    name: str
    a: float
    b: float
    a_median: float
    """Over all compared steps and ranks."""
    b_median: float
    a_step_spread: float | None
    """Standard deviation of the steps, each the mean of its ranks; None for one step."""
    b_step_spread: float | None
    a_rank_spread: float | None
    """Standard deviation of the ranks, each the mean of its steps; None for one rank."""
    b_rank_spread: float | None
    p: float | None
    """Rate at which noise alone makes as large a difference, corrected for the number of figures; None if unknown."""
    verdict: Verdict
    low: float | None = None
    high: float | None = None
    """95 % interval of the difference; None with too few steps."""
    detectable: float | None = None
    """Difference that would be called beyond noise in 80 % of such comparisons; None with too few steps."""
    drifts: bool = False
    """Whether the difference can't be attributed because the steps of a recording drift by more."""

    @property
    def delta(self) -> float:
        """B minus A."""
        return self.b - self.a

    @property
    def delta_percent(self) -> float | None:
        """The difference in percent of A; None where A is 0."""
        return percent_of(self.delta, self.a)

    @property
    def half_width(self) -> float | None:
        """Half the width of the difference's 95 % interval; None with too few steps."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def beyond(self) -> bool:
        """Whether the difference is beyond noise."""
        return self.verdict == "beyond noise"

    def to_dict(self, unit: str = "ns") -> dict[str, Any]:
        """Return the change as a row of JSON; times are whole ns."""
        row: dict[str, Any] = {}
        for key in ("a", "b", "delta", "a_median", "b_median", *_SPREADS):
            row[f"{key}_{unit}"] = self._value(key, unit)
        if unit == "ns":
            row["delta_percent"] = self.delta_percent
        row |= {"p": self.p, "verdict": self.verdict}
        return row | {f"{key}_{unit}": self._value(key, unit) for key in ("low", "high", "detectable")}

    def _value(self, key: str, unit: str) -> float | None:
        value: float | None = getattr(self, key)
        return value if value is None or unit != "ns" else round(value)


_SPREADS = "a_step_spread", "b_step_spread", "a_rank_spread", "b_rank_spread"


@dataclass(frozen=True, slots=True)
class KindChanges:
    """The figures of the steps of one kind."""

    kind: str
    """What distinguishes the kind: ``10 all_gather``, ``without optimizer`` …"""
    a_steps: int
    b_steps: int
    changes: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the kind as plain data."""
        rows = [{"figure": change.name, **change.to_dict()} for change in self.changes]
        return {"kind": self.kind, "a_steps": self.a_steps, "b_steps": self.b_steps, "figures": rows}


def changes_of(
    names: Sequence[str],
    a: Sequence[Float],
    b: Sequence[Float],
    weights: tuple[Float, Float],
    judged: Sequence[Judgement],
) -> list[Change]:
    """Return the change of each figure; *a* and *b* have for each figure ranks by steps."""
    rows = []
    for name, x, y, judgement in zip(names, a, b, judged, strict=True):
        means = float((x @ weights[0]).mean()), float((y @ weights[1]).mean())
        spreads = (
            standard_deviation(x.mean(axis=0)),
            standard_deviation(y.mean(axis=0)),
            standard_deviation(x.mean(axis=1)),
            standard_deviation(y.mean(axis=1)),
        )
        medians = float(np.median(x)), float(np.median(y))
        rows.append(_judged(Change(name, *means, *medians, *spreads, None, "same"), judgement))
    return rows


def _judged(change: Change, judgement: Judgement) -> Change:
    return replace(change, **{name: getattr(judgement, name) for name in Judgement.__slots__})


def figure_changes(sides: Sides, gpus: tuple[int, int] | None = None) -> tuple[Change, ...]:
    """Compare the nine figures and the idle causes, in whole ns: the parts add up to the wall time exactly.

    Args:
        gpus: index of one GPU of A and one of B; by default, the mean over all GPUs.
    """
    return _figure_changes(sides, gpus, sides.steps.kind_weights(), _figures_alpha(sides))


def kind_changes(sides: Sides) -> tuple[KindChanges, ...]:
    """Compare the figures of each kind of step on its own; empty where all steps are of one kind."""
    labels, steps = sides.kinds.labels, sides.steps
    if len(labels) < 2:
        return ()
    rows = []
    for kind, label in enumerate(labels):
        weights = np.eye(len(labels))[kind]
        changes = _figure_changes(sides, None, weights, _figures_alpha(sides) / len(labels), only=kind)
        counts = [int(((steps.side == side) & (steps.kind == kind)).sum()) for side in (0, 1)]
        rows.append(KindChanges(label, counts[0], counts[1], changes))
    return tuple(rows)


def _figures_alpha(sides: Sides) -> float:
    """Return the rate of false alarms for the figures; half of it is for the kinds where there are several."""
    return FIGURES_ALPHA / (2 if len(sides.kinds.labels) > 1 else 1)


def _figure_changes(
    sides: Sides, gpus: tuple[int, int] | None, kind_weights: Float, alpha: float, only: int | None = None
) -> tuple[Change, ...]:
    names = (*FIGURES, *CAUSES)
    x, y = (np.stack([side.figures[name] for name in names]).astype(float) for side in (sides.a, sides.b))
    if gpus is not None:
        x, y = x[:, gpus[0] : gpus[0] + 1], y[:, gpus[1] : gpus[1] + 1]
    values = np.concatenate((x.mean(axis=1), y.mean(axis=1)), axis=1)
    # Half of the false alarms for the question that is asked first, and half for all others together.
    shares = np.where(np.array(names) == "wall_ns", 0.5, 0.5 / (len(names) - 1))
    judged = judge(values, sides.steps, sides.floor, sides.margin, alpha, shares, kind_weights)
    weight, side = sides.steps.step_weights(kind_weights), sides.steps.side
    if only is not None:
        of_kind = sides.steps.kind == only
        x, y = x[..., of_kind[side == 0]], y[..., of_kind[side == 1]]
        weight, side = weight[of_kind], side[of_kind]
    rows = changes_of(names, list(x), list(y), (weight[side == 0], weight[side == 1]), judged)
    changes = {change.name: change for change in rows}
    whole = {name: (round(change.a), round(change.b)) for name, change in changes.items()}
    for total, parts in (("idle_ns", CAUSES), ("wall_ns", PARTS)):
        whole[total] = sum(whole[part][0] for part in parts), sum(whole[part][1] for part in parts)
    return tuple(replace(changes[name], a=whole[name][0], b=whole[name][1]) for name in names)


def overlap_change(sides: Sides, alike: bool = False) -> Change | None:
    """Compare the share of communication under compute, in percent; None where a side has no communication.

    Args:
        alike: whether no figure of the step differs beyond noise: then the overlap is not called different by chance.
    """
    shares = [_overlap(side, weight) for side, weight in zip((sides.a, sides.b), sides.weights, strict=True)]
    if shares[0] is None or shares[1] is None:
        return None
    a, b = shares[0][1][None], shares[1][1][None]
    values = np.concatenate((a, b), axis=1)
    judged = judge(values, sides.steps, _MIN_POINTS, _POINTS_THAT_DO_NOT_MATTER)
    judged = [without_claim(one) if alike else one for one in judged]
    change = changes_of(["overlap_percent"], [a], [b], sides.weights, judged)[0]
    return replace(change, a=shares[0][0], b=shares[1][0], a_rank_spread=None, b_rank_spread=None)


Judged = TypeVar("Judged", Change, Judgement)


def without_claim(judged: Judged) -> Judged:
    """Turn a claim into "cannot tell" if no figure of the step differs, since it may be chance."""
    return replace(judged, verdict="cannot tell") if judged.verdict == "beyond noise" else judged


def _overlap(side: Side, weight: Float) -> tuple[float, Float] | None:
    """Compute the overlap over all steps, and of each step."""
    hidden, exposed = (side.figures[name].sum(axis=0) for name in ("overlapped_comm_ns", "exposed_comm_ns"))
    both = hidden + exposed
    if not both.sum():
        return None
    return 100 * float(hidden @ weight / (both @ weight)), 100 * hidden / np.maximum(both, 1)
