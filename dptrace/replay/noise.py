"""Which delays stand out from the noise of a run: what ranks lose in turns, now and then, to one thing or another.

::

    lost in a step   rank 0  ·   ·   ·   ·   ·   ·       each step, one rank: steady, whatever else there is
                     rank 1  ███ ███ ███ ███ ███ ███
                     any     ·   ███ ·   ·   ███ ·       now and then: told apart if twice as long as the same number
                     noise   █   ·   ██  ·   █   █       of the longest delays among all the rest
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from dptrace.analysis.per_gpu.causes import NO_CORE

Losses = Mapping[tuple[int, str], int]
"""What ranks lose in steps, by rank and step, in ns."""
_EVENT = 0.2
"""Share of the longest delay of a cause from which another is one of its."""
_BEYOND = 2
"""How many times as long as those of the noise delays now and then are that stand out; those of each step, once."""
_STEADY = 0.8
"""Share of what is lost that one rank has, and of the steps in which it loses about as much, if it is always late."""
_ABOUT = 0.5
"""Least share of the median that is about as much."""
_MAIN = 0.2
"""Share of what a rank loses from which a cause is one of why it is always late."""


def beyond_noise(causes: Sequence[tuple[str, Losses]], left: Losses, steps: int) -> list[bool]:
    """Return of each cause whether the recording tells it from noise.

    Ranks without a core lack it to whatever else runs on the machine: that is noise but for one rank that always does.

    Args:
        causes: the name of each cause, and what is lost by it.
        left: what is lost by causes that are too small to be looked at.
        steps: number of steps.

    >>> steady = {(1, step): 40 for step in "abc"}
    >>> beyond_noise([("python", steady), ("python", {(0, "a"): 9}), ("no_core", {(0, "b"): 8})], {}, 3)
    [True, False, False]
    """
    noise, told = Counter(left), [False] * len(causes)
    every = sum((Counter(lost) for _, lost in causes), Counter(left))
    latest = _always_late(every, steps)
    # Noise first: ranks without a core, then from what loses least to what loses most.
    for number in sorted(range(len(causes)), key=lambda n: (causes[n][0] != NO_CORE, sum(causes[n][1].values()))):
        cause, lost = causes[number]
        part = sum(ns for (rank, _), ns in lost.items() if rank == latest)
        if part >= max(1, _STEADY * sum(lost.values()), _MAIN * sum(every.values())):
            told[number] = True
        elif _always_late(lost, steps) is not None:
            told[number] = _beyond(lost, noise, 1)
        else:
            told[number] = cause != NO_CORE and _beyond(lost, noise, _BEYOND)
        if not told[number]:
            noise.update(lost)
    return told


def _always_late(lost: Losses, steps: int) -> int | None:
    """Return the rank that has most of what is lost, about as much in most steps; None where no rank has."""
    by_rank = Counter[int]()
    for (rank, _), ns in lost.items():
        by_rank[rank] += ns
    (latest, most), *_ = by_rank.most_common(1) or [(-1, 0)]
    own = [ns for (rank, step), ns in lost.items() if rank == latest and step]
    about = [ns for ns in own if ns >= _ABOUT * median(own)]
    return latest if most >= _STEADY * by_rank.total() and len(about) >= max(1, _STEADY * steps) else None


def _beyond(lost: Losses, noise: Losses, factor: int) -> bool:
    longest = _by_step(lost)
    events = [ns for ns in longest if ns >= _EVENT * longest[0]]
    others = _by_step(noise)[: len(events)]
    return not others or median(events) >= factor * median([*others, *[0] * (len(events) - len(others))])


def _by_step(lost: Losses) -> list[int]:
    """Return what the latest rank loses in each step, the most first."""
    latest: dict[str, int] = {}
    for (_, step), ns in lost.items():
        latest[step] = max(ns, latest.get(step, 0))
    return sorted(latest.values(), reverse=True)
