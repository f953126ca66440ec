"""Which ranks tell most of a run that has too many to look at: who held the others up, who is slowest, who differs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dptrace.run.run import Run

__all__ = ["NotableRank", "notable_ranks"]

_NOTABLE = 0.01
"""Share of the run's wall time, or of a typical rank's figure, from which something is worth a word."""


@dataclass(frozen=True, slots=True)
class NotableRank:
    """One of a run's devices, and why it is among the first to look at."""

    index: int
    """Into the run's timelines."""
    why: str
    """In a word or two; empty for one like all others."""


def notable_ranks(run: Run) -> tuple[NotableRank, ...]:
    """Put the devices that have steps in order: the one that made others wait most first, one like most last but one.

    First come those that cost the others time by coming late; then the slowest, the one with most exposed
    communication and the one that idles most; then the most typical one, to compare with; then the others by rank.
    """
    with_steps = [index for index, device in enumerate(run.devices) if len(device.timeline.windows)]
    if not with_steps:
        return ()
    why: dict[int, list[str]] = {}
    for index in _late(run):
        why.setdefault(index, []).append("held others up")
    for word, values in _figures(run, with_steps).items():
        if np.ptp(values) > _NOTABLE * max(float(np.median(values)), 1.0):
            why.setdefault(with_steps[int(values.argmax())], []).append(word)
    typical = with_steps[_nearest(run, with_steps)]
    if len(with_steps) > len(why) and typical not in why:
        why[typical] = ["typical"]
    order = [*why, *(index for index in with_steps if index not in why)]
    return tuple(NotableRank(index, ", ".join(why.get(index, []))) for index in order)


def _late(run: Run) -> list[int]:
    """Give the devices whose coming late cost others a notable part of the run, the dearest first."""
    late = run.cross_rank.stragglers
    cost = np.bincount(late.device, late.cost_ns, len(run.devices))
    wall = max(split.total()["wall_ns"] for split in run.splits)
    return [int(i) for i in np.argsort(-cost, kind="stable") if cost[i] > _NOTABLE * wall]


def _figures(run: Run, with_steps: list[int]) -> dict[str, NDArray[np.float64]]:
    """Give of each device what can make it stand out: its mean step, and parts of it."""
    words = {"slowest": "wall_ns", "most exposed": "exposed_comm_ns", "most idle": "idle_ns"}
    figures = [run.splits[index].figures for index in with_steps]
    return {
        word: np.array([float(own[name].mean()) if len(own[name]) else 0.0 for own in figures])
        for word, name in words.items()
    }


def _nearest(run: Run, with_steps: list[int]) -> int:
    """Give the place in *there* of the device that is nearest to the median in all of these."""
    columns = [abs(values - np.median(values)) for values in _figures(run, with_steps).values()]
    return int(np.sum(columns, axis=0).argmin())
