"""Delays of ranks that could run but had no core: a recording by dptrace measures that time in each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from dptrace.analysis.per_gpu.causes import DELAY_CAUSES
from dptrace.core.checks import rank_entries
from dptrace.timeline.model import Timeline

_MAY_LACK = tuple(cause.name for cause in DELAY_CAUSES if cause.may_lack_core)
"""Causes of a host's delay behind which a missing core may be; without a GPU compute is the host's, too."""
_MOST = 0.8
"""Share of what a rank loses in a step that its time without a core must have if that is behind it; it may be more."""
_BEYOND = 0.5
"""Share of it that this time must exceed that of the other ranks by: what all lack makes none of them late."""

CoreWaits = Mapping[tuple[int, str], int]
"""How long a rank had no core in a step, by rank and name of the step, in ns."""


class Loss(NamedTuple):
    """What a rank loses in a step, and why."""

    rank: int
    step: str
    cause: str
    ns: int


def core_waits(metadata: Mapping[str, Any], timelines: Sequence[Timeline]) -> CoreWaits:
    """Return what ``run.json`` holds of the ranks; nothing where it is not recorded."""
    schedule = metadata.get("schedule")
    recorded = {row.get("rank"): row.get("core_wait_ns") or [] for row in rank_entries(metadata)}
    first = _first_step(schedule if isinstance(schedule, Mapping) else {})
    waits: dict[tuple[int, str], int] = {}
    for timeline in timelines:
        own, names = recorded.get(timeline.rank, []), timeline.windows.names
        # Of some of the steps, their numbers tell which they are.
        places = range(len(names)) if len(names) == len(own) else [_number(name) - first for name in names]
        for name, place in zip(names, places, strict=True):
            if 0 <= place < len(own):
                waits[timeline.rank, name] = round(own[place])
    return waits


def _first_step(schedule: Mapping[str, Any]) -> int:
    numbers = [schedule.get(key) for key in ("wait", "warmup")]
    return sum(number for number in numbers if isinstance(number, int))


def _number(name: str) -> int:
    digits = name.rpartition("#")[2]
    return int(digits) if digits.isdecimal() else -1


def lacks_core(losses: Sequence[Loss], waits: CoreWaits, on_cpu: bool) -> list[bool]:
    """Return of each loss whether the rank had no core for most of what it loses in that step, unlike the others.

    >>> lacks_core([Loss(1, "a", "python", 10), Loss(1, "b", "python", 10)], {(1, "a"): 9, (1, "b"): 1}, on_cpu=False)
    [True, False]
    """
    causes = (*_MAY_LACK, "compute") if on_cpu else _MAY_LACK
    lost = Counter[tuple[int, str]]()
    for loss in losses:
        lost[loss.rank, loss.step] += loss.ns * (loss.cause in causes)

    by_step: dict[str, dict[int, int]] = {}
    for (rank, step), ns in waits.items():
        by_step.setdefault(step, {})[rank] = ns
    without = {(rank, step): _lacks(by_step.get(step, {}), rank, ns) for (rank, step), ns in lost.items() if ns > 0}
    return [loss.cause in causes and without.get((loss.rank, loss.step), False) for loss in losses]


def _lacks(waits: Mapping[int, int], rank: int, lost_ns: int) -> bool:
    own = waits.get(rank, 0)
    if own < _MOST * lost_ns:
        return False
    others = [ns for other, ns in waits.items() if other != rank]
    return own - (median(others) if others else 0) >= _BEYOND * lost_ns


def may_lack_core(lost_ns: Mapping[tuple[int, str], float], waits: CoreWaits, on_cpu: bool) -> bool:
    """Return whether a delay may be a missing core although that is not its cause: nothing else tells which.

    Args:
        lost_ns: what ranks lose by it in a step.
    """
    if not waits:
        return on_cpu
    return sum(waits.get(place, 0) for place in lost_ns) >= _MOST * sum(lost_ns.values())
