"""Rows of changes between two sides: kernels by name, and collectives by kind, group and size."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dptrace.comparison.changes import Change, changes_of, without_claim
from dptrace.comparison.samples import COLLECTIVE_VALUES
from dptrace.comparison.sides import Sides
from dptrace.comparison.significance import FIGURES_ALPHA, TRANSFERS_ALPHA, WAITS_ALPHA, Judgement, judge
from dptrace.comparison.step_noise import Float
from dptrace.core.units import byte_size
from dptrace.model.collectives import COLLECTIVES
from dptrace.timeline.model import Collective

__all__ = [
    "COLLECTIVE_COLUMNS",
    "KERNEL_COLUMNS",
    "CollectiveChange",
    "KernelChange",
    "collective_changes",
    "kernel_changes",
    "wait_and_transfer",
]


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
        row: dict[str, Any] = {"kind": key.kind, "group": key.group, "group_size": key.group_size}
        row |= {"bytes": key.bytes or None, "dtype": key.dtype}
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
        key = collective if collective.group in groups else replace(collective, group="")
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
