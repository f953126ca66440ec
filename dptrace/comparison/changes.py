"""The change of each figure between two sides, over all steps and for each kind of step."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
from msgspec.structs import replace as structs_replace
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.analysis.per_gpu.split import FIGURE_WORDS, FIGURES
from dptrace.comparison.sides import COLLECTIVE_VALUES, Side, Sides, ideal_ns
from dptrace.comparison.significance import (
    FIGURES_ALPHA,
    TRANSFERS_ALPHA,
    WAITS_ALPHA,
    Float,
    Judgement,
    Power,
    Verdict,
    judge,
    standard_deviation,
)
from dptrace.core.units import byte_size
from dptrace.model.collectives import COLLECTIVES
from dptrace.timeline.model import Collective

PARTS = tuple(name for name in FIGURES if name not in ("overlapped_comm_ns", "wall_ns"))
"""The figures that add up to a step's wall time."""

_MIN_POINTS = 0.5
"""Percentage points below which two overlaps count as the same."""
_POINTS_THAT_DO_NOT_MATTER = 3.0
"""Percentage points of overlap that do not matter."""


def percent_of(delta: float, whole: float) -> float | None:
    """Return a difference in percent of *whole*; None for a difference from zero.

    >>> percent_of(5, 100), percent_of(0, 0), percent_of(5, 0)
    (5.0, 0.0, None)
    """
    if not delta:
        return 0.0
    return 100 * delta / whole if whole else None


FIGURE_NAMES = {
    **FIGURE_WORDS,
    "exposed_wait_ns": "exposed waiting for ranks",
    "transfer_ns": "transfer",
    "wait_ns": "wait for ranks",
}
"""The figures in words. ``transfer_ns`` and ``wait_ns`` are of matched collectives, exposed or not."""


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
    power: Power | None = None
    """What differences these recordings tell from noise; None with too few steps."""

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
        verdict = {name: getattr(judgement, name) for name in Judgement.__slots__}
        rows.append(Change(name, *means, *medians, *spreads, **verdict))
    return rows


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
    names = [name for name in (*FIGURES, *CAUSES) if name in sides.a.figures and name in sides.b.figures]
    rows = [slice(None)] * 2 if gpus is None else [slice(gpu, gpu + 1) for gpu in gpus]
    x, y = (
        np.stack([side.figures[name][row] for name in names]).astype(float)
        for side, row in zip((sides.a, sides.b), rows, strict=True)
    )
    values = np.concatenate((x.mean(axis=1), y.mean(axis=1)), axis=1)
    # Half of the false alarms for the question that is asked first, and half for all others together.
    shares = np.where(np.array(names) == "wall_ns", 0.5, 0.5 / max(len(names) - 1, 1))
    judged = judge(values, sides.steps, sides.floor, sides.margin, alpha, shares, kind_weights)
    weight, side = sides.steps.step_weights(kind_weights), sides.steps.side
    if only is not None:
        of_kind = sides.steps.kind == only
        x, y = x[..., of_kind[side == 0]], y[..., of_kind[side == 1]]
        weight, side = weight[of_kind], side[of_kind]
    found = changes_of(names, list(x), list(y), (weight[side == 0], weight[side == 1]), judged)
    changes = {change.name: change for change in found}
    whole = {name: (round(change.a), round(change.b)) for name, change in changes.items()}
    for total, parts in (("idle_ns", CAUSES), ("wall_ns", PARTS)):
        if not {total, *parts} <= whole.keys():
            continue
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
    names = ("overlapped_comm_ns", "exposed_comm_ns")
    if not {*names} <= side.figures.keys():
        return None
    hidden, exposed = (side.figures[name].sum(axis=0) for name in names)
    both = hidden + exposed
    if not both.sum():
        return None
    return 100 * float(hidden @ weight / (both @ weight)), 100 * hidden / np.maximum(both, 1)


# How MFU changed. A step's FLOPs and its GPU's peak do not vary, so the noise is that of the wall time.

_EQUAL = 1e-9
"""Relative difference below which two figures are equal but for rounding."""


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
        power=None if wall.power is None else wall.power.times(before / wall.a),
    )


def _verdict(wall: Change, a: float, b: float, low: float | None, high: float | None) -> Verdict:
    """Return the wall time's verdict for equal work; else whether the interval excludes no change."""
    if abs(a - b) <= _EQUAL * a:
        return wall.verdict
    if low is None or high is None:
        return "cannot tell"
    return "beyond noise" if low > 0 or high < 0 else "within noise"


def _ideal_ns(side: Side) -> float | None:
    """Return how long a step of all recordings would take at the GPU's peak; None where one does not tell."""
    ideal = [ideal_ns(sample.run) for sample in side.samples]
    known = [one for one in ideal if one is not None]
    return fmean(known) if known and len(known) == len(ideal) else None


# Rows of changes between two sides: kernels by name, and collectives by kind, group and size.


@dataclass(frozen=True, slots=True)
class KernelChange:
    """All kernels of one name: their time and their number in a step."""

    kind: str
    """``compute`` or ``memory``."""
    time: Change
    a_count: float
    b_count: float

    def to_dict(self) -> dict[str, Any]:
        """Return the change as a row of JSON."""
        row = {"name": self.time.name, "kind": self.kind, **self.time.to_dict()}
        return _with_counts(row, self.a_count, self.b_count)


@dataclass(frozen=True, slots=True)
class CollectiveChange:
    """Collectives of one kind, group and size: their time and their number in a rank's step."""

    collective: Collective
    exposed: Change
    overlapped: Change
    duration: Change
    a_count: float
    b_count: float
    transfer: Change | None = None
    """The shortest duration among the ranks; None where a rank of the group is missing, or a call is not matched."""
    wait: Change | None = None
    """The duration minus the transfer; None as for ``transfer``."""

    @property
    def label(self) -> str:
        """Kind, group and size: ``all_gather · dp (77.3 MB)``."""
        group = f" · {self.collective.group}" if self.collective.group else ""
        size = f" ({byte_size(self.collective.bytes)})" if self.collective.bytes else ""
        return f"{self.collective.kind}{group}{size}"

    def to_dict(self) -> dict[str, Any]:
        """Return the change as a row of JSON; times are whole ns."""
        key = self.collective
        names = "group", "group_size", "bytes", "dtype"
        row: dict[str, Any] = {"kind": key.kind} | {name: getattr(key, name) or None for name in names}
        for side, count in (("a", self.a_count), ("b", self.b_count)):
            row[f"{side}_bytes_per_step"] = count * key.bytes if key.bytes or not count else None
        for word in ("exposed", "overlapped", "duration", *_MATCHED):
            row |= {f"{side}_{word}_ns": _whole(getattr(self, word), side) for side in ("a", "b", "delta")}
        for word in ("exposed", "overlapped", "duration", *_MATCHED):
            change = getattr(self, word)
            row[f"{word}_verdict"] = None if change is None else change.verdict
        return _with_counts(row, self.a_count, self.b_count)


_MATCHED = ("transfer", "wait")


def _whole(change: Change | None, side: str) -> int | None:
    return None if change is None else round(getattr(change, side))


def _with_counts(row: dict[str, Any], a: float, b: float) -> dict[str, Any]:
    only = "A" if not b else "B" if not a else None
    return {**row, "a_count": a, "b_count": b, "only_in": only}


_EMPTY_CHANGE = Change("", 0, 0, 0, 0, None, None, None, None, None, "same")
KERNEL_COLUMNS = tuple(KernelChange("", _EMPTY_CHANGE, 0, 0).to_dict())
COLLECTIVE_COLUMNS = tuple(
    CollectiveChange(Collective(""), _EMPTY_CHANGE, _EMPTY_CHANGE, _EMPTY_CHANGE, 0, 0).to_dict()
)
"""Columns of the frames, also of those without rows."""


def kernel_changes(sides: Sides, alike: bool = False) -> tuple[KernelChange, ...]:
    """Compare kernels, copies and sets by name, largest change first.

    Args:
        alike: whether no figure of the step differs beyond noise: then no row is called different by chance.
    """
    table = sides.table(lambda side: side.kernels, 2)
    if not table:
        return ()
    values = np.stack(list(table.values()))
    times = _row_changes([name for _, name in table], values[:, 0], sides, alike)
    counts = zip(*_means(values[:, 1], sides), strict=True)
    rows = [
        KernelChange(kind, time, old, new) for (kind, _), time, (old, new) in zip(table, times, counts, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: -abs(row.time.delta)))


def collective_changes(sides: Sides, alike: bool = False) -> tuple[CollectiveChange, ...]:
    """Compare collectives by kind, group and size, largest change of exposed time first.

    Transfers are judged on their own: they may change where no figure of the step does.

    Args:
        alike: as for :func:`kernel_changes`; transfers are not affected.
    """
    table = _collective_table(sides)
    if not table:
        return ()
    values = dict(zip(COLLECTIVE_VALUES, np.stack(list(table.values())).swapaxes(0, 1), strict=True))
    kinds = [key.kind for key in table]
    duration, exposed, overlapped, wait = (
        _row_changes(kinds, values[name], sides, alike) for name in ("duration", "exposed", "overlapped", "wait")
    )
    # The total of the transfers is judged with them.
    alpha = TRANSFERS_ALPHA * len(table) / (len(table) + 1)
    transfer = _row_changes(kinds, values["transfer"], sides, False, alpha)
    counts = zip(*_means(values["count"], sides), strict=True)
    rows = [
        CollectiveChange(key, *changes, *count, *(matched if known else (None, None)))
        for key, changes, count, matched, known in zip(
            table,
            zip(exposed, overlapped, duration, strict=True),
            counts,
            zip(transfer, wait, strict=True),
            (values["matched"] == values["count"]).all(axis=1).tolist(),
            strict=True,
        )
    ]
    return tuple(sorted(rows, key=lambda row: (-abs(row.exposed.delta), -abs(row.overlapped.delta))))


def _collective_table(sides: Sides) -> dict[Collective, Float]:
    """Return the values of each collective, without the names of groups that only one side has.

    Such names do not show which group corresponds to which.
    """
    groups = {key.group for key in sides.a.collectives} & {key.group for key in sides.b.collectives}
    table: dict[Collective, Float] = {}
    for collective, values in sides.table(lambda side: side.collectives, len(COLLECTIVE_VALUES)).items():
        key = collective if collective.group in groups else structs_replace(collective, group="")
        table[key] = table.get(key, 0) + values
    return table


def _means(values: Float, sides: Sides) -> tuple[list[float], list[float]]:
    """Return the means of each row in A and in B."""
    a, b = values[:, : sides.a.steps] @ sides.weights[0], values[:, sides.a.steps :] @ sides.weights[1]
    # The weights' own rounding: 2.9999999999999996 calls.
    return a.round(9).tolist(), b.round(9).tolist()


def _row_changes(
    names: Sequence[str], values: Float, sides: Sides, alike: bool, alpha: float = FIGURES_ALPHA
) -> list[Change]:
    """Return the change of each row of a table; rows have no spread over ranks, which is not computed here.

    Args:
        alike: remove any claim.
    """
    judged = [without_claim(one) if alike else one for one in _judge_rows(values, sides, alpha)]
    a, b = values[:, None, : sides.a.steps], values[:, None, sides.a.steps :]
    rows = changes_of(names, list(a), list(b), sides.weights, judged)
    return [dataclasses.replace(row, a_rank_spread=None, b_rank_spread=None) for row in rows]


def _judge_rows(values: Float, sides: Sides, alpha: float) -> list[Judgement]:
    """Judge rows, each in the kinds of steps in which it occurs: the others say nothing of its noise."""
    steps = sides.steps
    kinds = np.arange(len(steps.kind_weights()))
    occurs = np.stack([values[:, steps.kind == kind].any(axis=1) for kind in kinds], axis=1)
    judged = [Judgement("same", None)] * len(values)
    for pattern in np.unique(occurs[occurs.any(axis=1)], axis=0):
        rows = np.flatnonzero((occurs == pattern).all(axis=1))
        chosen: NDArray[np.bool_] = pattern[steps.kind]
        weights = sides.steps.kind_weights()[pattern]
        share = alpha * len(rows) / len(values)
        found = judge(
            values[rows][:, chosen], steps.select(chosen), sides.floor, sides.margin, share, kind_weights=weights
        )
        for row, judgement in zip(rows.tolist(), found, strict=True):
            judged[row] = judgement
    return judged


def wait_and_transfer(sides: Sides, rows: Sequence[CollectiveChange]) -> tuple[Change, ...]:
    """Compare exposed waiting, and transfer and wait of all matched collectives of a step.

    What is unknown on either side is left out: it would compare as 0.

    Args:
        rows: the collectives; those without a transfer do not count.
    """
    changes: list[Change] = []
    if sides.a.exposed_wait is not None and sides.b.exposed_wait is not None:
        waiting = np.concatenate((sides.a.exposed_wait, sides.b.exposed_wait))[None]
        changes += _row_changes(["exposed_wait_ns"], waiting, sides, False, WAITS_ALPHA / 2)
    matched = {row.collective for row in rows if row.transfer is not None}
    table = _totalled(_collective_table(sides), matched, sides.a.steps)
    if table:
        total = dict(zip(COLLECTIVE_VALUES, np.sum(table, axis=0)[:, None], strict=True))
        alpha = TRANSFERS_ALPHA / (len(table) + 1)
        changes += _row_changes(["transfer_ns"], total["transfer"], sides, False, alpha)
        changes += _row_changes(["wait_ns"], total["wait"], sides, False, WAITS_ALPHA / 2)
    return tuple(changes)


def _totalled(table: dict[Collective, Float], matched: Container[Collective], steps_a: int) -> list[Float]:
    """Return the values of the matched collectives that can be added up on both sides.

    A collective of one side has no counterpart where the other side's are partly unknown: its total would be compared
    with 0 instead of with them.
    """
    halves = [slice(None, steps_a), slice(steps_a, None)]
    gaps = [_has_gaps({key: values[:, half] for key, values in table.items()}) for half in halves]
    counts = COLLECTIVE_VALUES.index("count")
    return [
        values
        for key, values in table.items()
        if key in matched and all(values[counts, half].any() or not gap for half, gap in zip(halves, gaps, strict=True))
    ]


def _has_gaps(table: dict[Collective, Float]) -> bool:
    """Return whether transfers of a side are unknown: of collectives that synchronize, or of all that it has."""
    matched, counts = (COLLECTIVE_VALUES.index(name) for name in ("matched", "count"))
    present = {key: values for key, values in table.items() if values[counts].any()}
    unmatched = [key for key, values in present.items() if (values[matched] < values[counts]).any()]
    # Messages between two ranks have no transfer, whatever was recorded.
    lacking = any(key.kind in COLLECTIVES and COLLECTIVES[key.kind].synchronizing for key in unmatched)
    return lacking or (bool(present) and len(unmatched) == len(present))
