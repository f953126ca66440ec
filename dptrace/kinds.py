"""What each kind of collective took of a run, added up over its GPUs and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dptrace.run import overlap_percent
from dptrace.split import Split

__all__ = ["KindFigures", "by_kind"]


@dataclass(frozen=True, slots=True)
class KindFigures:
    """One kind of collective: what a GPU did of it in a step, on average."""

    kind: str
    count: float
    bytes: float
    exposed_ns: float
    overlapped_ns: float
    overlap_percent: float | None
    """Of all its time in the run; nothing where it took none."""


def by_kind(splits: Sequence[Split]) -> tuple[KindFigures, ...]:
    """Add up each kind, in the order of their names; none where the run has no step or no communication."""
    steps = sum(len(figures.names) for figures in splits)
    kinds = sorted({kind for figures in splits for kind in figures.comm}) if steps else []
    found = []
    for kind in kinds:
        parts = [figures.comm[kind] for figures in splits if kind in figures.comm]
        count, size, exposed, overlapped = (
            sum(int(getattr(part, name).sum()) for part in parts)
            for name in ("count", "bytes", "exposed_ns", "overlapped_ns")
        )
        percent = overlap_percent(overlapped, exposed)
        found.append(KindFigures(kind, count / steps, size / steps, exposed / steps, overlapped / steps, percent))
    return tuple(found)
