"""The change of one figure between two runs, and rows of changes for kernels and collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.comparison.samples import RunSample
from dptrace.comparison.significance import Float, Verdict, judge, standard_deviation
from dptrace.timeline.model import Collective

__all__ = [
    "COLLECTIVE_COLUMNS",
    "KERNEL_COLUMNS",
    "PARTS",
    "Change",
    "CollectiveChange",
    "KernelChange",
    "collective_changes",
    "figure_changes",
    "kernel_changes",
    "overlap_change",
    "percent_of",
]

PARTS = tuple(name for name in FIGURES if name not in ("overlapped_comm_ns", "wall_ns"))
"""The figures that add up to a step's wall time."""

_MIN_POINTS = 0.5
"""Percentage points below which two overlaps count as the same."""


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
    """A figure of a step in A and in B: means over the steady steps and the ranks, in ns (overlap: in percent)."""

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
    """How often swapped steps differ as much; None with too few steps."""
    verdict: Verdict

    @property
    def delta(self) -> float:
        """B minus A."""
        return self.b - self.a

    @property
    def delta_percent(self) -> float | None:
        """The difference in percent of A; None where A is 0."""
        return percent_of(self.delta, self.a)

    @property
    def beyond(self) -> bool:
        """Whether the difference is beyond noise."""
        return self.verdict == "beyond noise"

    def to_dict(self, unit: str = "ns") -> dict[str, Any]:
        """Return the change as a row of JSON; times are whole ns."""
        row: dict[str, Any] = {}
        for key in ("a", "b", "delta", "a_median", "b_median", *_SPREADS):
            value = getattr(self, key)
            row[f"{key}_{unit}"] = value if value is None or unit != "ns" else round(value)
        if unit == "ns":
            row["delta_percent"] = self.delta_percent
        return row | {"p": self.p, "verdict": self.verdict}


_SPREADS = "a_step_spread", "b_step_spread", "a_rank_spread", "b_rank_spread"


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

    def to_dict(self) -> dict[str, Any]:
        """Return the change as a row of JSON; times are whole ns."""
        key = self.collective
        row: dict[str, Any] = {"kind": key.kind, "group": key.group, "group_size": key.group_size}
        row |= {"bytes": key.bytes or None, "dtype": key.dtype}
        for side, count in (("a", self.a_count), ("b", self.b_count)):
            row[f"{side}_bytes_per_step"] = count * key.bytes if key.bytes or not count else None
        for word, change in (("exposed", self.exposed), ("overlapped", self.overlapped), ("duration", self.duration)):
            row |= {f"{side}_{word}_ns": round(getattr(change, side)) for side in ("a", "b", "delta")}
        row |= {"exposed_verdict": self.exposed.verdict, "overlapped_verdict": self.overlapped.verdict}
        row |= {"duration_verdict": self.duration.verdict}
        return _with_counts(row, self.a_count, self.b_count)


def _with_counts(row: dict[str, Any], a: float, b: float) -> dict[str, Any]:
    only = "A" if not b else "B" if not a else None
    return {**row, "a_count": a, "b_count": b, "only_in": only}


_EMPTY_CHANGE = Change("", 0, 0, 0, 0, None, None, None, None, None, "same")
KERNEL_COLUMNS = tuple(KernelChange("", _EMPTY_CHANGE, 0, 0).to_dict())
COLLECTIVE_COLUMNS = tuple(
    CollectiveChange(Collective(""), _EMPTY_CHANGE, _EMPTY_CHANGE, _EMPTY_CHANGE, 0, 0).to_dict()
)
"""Columns of the frames, also of those without rows."""


def _changes(names: Sequence[str], a: Float, b: Float, floor: float) -> list[Change]:
    """Return the change of each figure; *a* and *b* are figures by ranks by steps."""
    if not names:
        return []
    judgements = judge(a.mean(axis=1), b.mean(axis=1), floor)
    rows = []
    for name, x, y, judgement in zip(names, a, b, judgements, strict=True):
        spreads = (
            standard_deviation(x.mean(axis=0)),
            standard_deviation(y.mean(axis=0)),
            standard_deviation(x.mean(axis=1)),
            standard_deviation(y.mean(axis=1)),
        )
        medians = float(np.median(x)), float(np.median(y))
        rows.append(Change(name, float(x.mean()), float(y.mean()), *medians, *spreads, judgement.p, judgement.verdict))
    return rows


def figure_changes(a: RunSample, b: RunSample, floor: float, gpus: tuple[int, int] | None = None) -> tuple[Change, ...]:
    """Compare the nine figures and the idle causes, in whole ns: the parts add up to the wall time exactly.

    Args:
        floor: difference below which figures count as the same, in ns.
        gpus: index of one GPU of A and one of B; by default, the mean over all GPUs.
    """
    rows = slice(None), slice(None)
    if gpus is not None:
        rows = slice(gpus[0], gpus[0] + 1), slice(gpus[1], gpus[1] + 1)
    names = (*FIGURES, *CAUSES)
    x, y = (np.stack([s.figures[name][row] for name in names]) for s, row in zip((a, b), rows, strict=True))
    changes = {change.name: change for change in _changes(names, x.astype(float), y.astype(float), floor)}
    whole = {name: (round(change.a), round(change.b)) for name, change in changes.items()}
    for total, parts in (("idle_ns", CAUSES), ("wall_ns", PARTS)):
        whole[total] = sum(whole[part][0] for part in parts), sum(whole[part][1] for part in parts)
    return tuple(replace(changes[name], a=whole[name][0], b=whole[name][1]) for name in names)


def overlap_change(a: RunSample, b: RunSample) -> Change | None:
    """Compare the share of communication under compute, in percent; None where a run has no communication."""
    shares = [_overlap(sample) for sample in (a, b)]
    if shares[0] is None or shares[1] is None:
        return None
    change = _changes(["overlap_percent"], shares[0][1][None, None], shares[1][1][None, None], _MIN_POINTS)[0]
    return replace(change, a=shares[0][0], b=shares[1][0], a_rank_spread=None, b_rank_spread=None)


def _overlap(sample: RunSample) -> tuple[float, Float] | None:
    """Compute the overlap over all steps, and of each step."""
    hidden, exposed = (sample.figures[name].sum(axis=0) for name in ("overlapped_comm_ns", "exposed_comm_ns"))
    both = hidden + exposed
    if not both.sum():
        return None
    return 100 * float(hidden.sum() / both.sum()), 100 * hidden / np.maximum(both, 1)


def kernel_changes(a: RunSample, b: RunSample, floor: float, alike: bool = False) -> tuple[KernelChange, ...]:
    """Compare kernels, copies and sets by name, largest change first.

    Args:
        alike: whether no figure of the step differs beyond noise: then no row is called different by chance.
    """
    kernels = a.kernels(), b.kernels()
    keys = list(dict.fromkeys((*kernels[0], *kernels[1])))
    if not keys:
        return ()
    x, y = (_stacked(keys, values, 2, len(s.steps)) for values, s in zip(kernels, (a, b), strict=True))
    times = _changes([name for _, name in keys], x[:, 0, None], y[:, 0, None], floor)
    rows = [
        KernelChange(kind, _row(time, alike), float(old), float(new))
        for (kind, _), time, old, new in zip(keys, times, x[:, 1].mean(axis=1), y[:, 1].mean(axis=1), strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: -abs(row.time.delta)))


def collective_changes(a: RunSample, b: RunSample, floor: float, alike: bool = False) -> tuple[CollectiveChange, ...]:
    """Compare collectives by kind, group and size, largest change of exposed time first.

    Args:
        alike: as for :func:`kernel_changes`.
    """
    collectives = [sample.collectives() for sample in (a, b)]
    groups = {key.group for key in collectives[0]} & {key.group for key in collectives[1]}
    collectives = [_with_shared_groups(values, groups) for values in collectives]
    keys = list(dict.fromkeys((*collectives[0], *collectives[1])))
    if not keys:
        return ()
    x, y = (_stacked(keys, values, 4, len(s.steps)) for values, s in zip(collectives, (a, b), strict=True))
    kinds = [key.kind for key in keys]
    duration, exposed, overlapped = (
        [_row(c, alike) for c in _changes(kinds, x[:, i, None], y[:, i, None], floor)] for i in range(3)
    )
    counts = zip(x[:, 3].mean(axis=1).tolist(), y[:, 3].mean(axis=1).tolist(), strict=True)
    rows = [
        CollectiveChange(key, shown, hidden, whole, old, new)
        for key, shown, hidden, whole, (old, new) in zip(keys, exposed, overlapped, duration, counts, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: (-abs(row.exposed.delta), -abs(row.overlapped.delta))))


def _with_shared_groups(collectives: dict[Collective, Float], groups: set[str]) -> dict[Collective, Float]:
    """Drop the names of groups that only one run has: they do not show which group corresponds to which."""
    renamed: dict[Collective, Float] = {}
    for collective, values in collectives.items():
        key = collective if collective.group in groups else replace(collective, group="")
        renamed[key] = renamed.get(key, 0) + values
    return renamed


def _stacked(keys: Sequence[Any], by_key: dict[Any, Float], values: int, steps: int) -> Float:
    absent = np.zeros((values, steps))
    return np.stack([by_key.get(key, absent) for key in keys])


def _row(change: Change, alike: bool) -> Change:
    """Remove the spread over ranks, which is not computed here, and any claim where the runs are alike."""
    verdict = "within noise" if alike and change.beyond else change.verdict
    return replace(change, a_rank_spread=None, b_rank_spread=None, verdict=verdict)
