"""Choose the ranks to look at first in a run with many: stragglers, the slowest, and those that differ most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.device import middle_step
from dptrace.core.intervals import median, sums
from dptrace.run.run import Run
from dptrace.run.select import cut_to_steps
from dptrace.timeline.model import Windows

_NOTABLE = 0.01
"""Share of the run's wall time, or of a typical rank's figure, above which a difference is notable."""
_OWN = 0.2
"""Share of its own waiting from which a rank is one that others waited for."""
HELD_UP = "held others up"
"""Why a straggler is notable."""


class NotableRank(msgspec.Struct, frozen=True):
    """One of a run's devices, and why it is notable."""

    index: int
    """Index into the run's timelines."""
    why: str
    """The reason in a word or two; empty for a device like all others."""


def notable_ranks(run: Run) -> tuple[NotableRank, ...]:
    """Return the devices that have steps, the most notable first.

    First come stragglers, the most expensive first; then the slowest, the one with the most exposed communication and
    the one with the most idle time; then the most typical one, for comparison; then the others by rank.
    """
    with_steps = [index for index, device in enumerate(run.devices) if len(device.timeline.windows)]
    if not with_steps:
        return ()
    why: dict[int, list[str]] = {}
    for index in _late(run):
        why.setdefault(index, []).append(HELD_UP)
    figures = _figures(run, with_steps)
    for word, values in figures.items():
        if np.ptp(values) > _NOTABLE * max(float(median(values)), 1.0):
            why.setdefault(with_steps[int(values.argmax())], []).append(word)
    # The typical one is nearest to the median in all figures.
    far = sum((abs(values - median(values)) for values in figures.values()), np.zeros(len(with_steps)))
    typical = with_steps[int(far.argmin())]
    if len(with_steps) > len(why) and typical not in why:
        why[typical] = ["typical"]
    order = [*why, *(index for index in with_steps if index not in why)]
    return tuple(NotableRank(index, ", ".join(why.get(index, []))) for index in order)


MANY = 16
"""GPUs above which tables and pages begin with the notable ones."""
_MOST_FIRST = 12
"""Most notable GPUs that come first."""


def ranks_first(run: Run, many: int = MANY) -> tuple[NotableRank, ...]:
    """Return all devices as a table lists them: by rank; of many, begin with notable ones, the first and the last."""
    rest = range(len(run.devices))
    if len(rest) <= many:
        return tuple(NotableRank(index, "") for index in rest)
    why = {one.index: one.why for one in notable_ranks(run) if one.why}
    first = dict(list(why.items())[:_MOST_FIRST])
    typical = {index: reason for index, reason in why.items() if reason == "typical"}
    first |= typical | {index: first.get(index, word) for index, word in ((rest[0], "first"), (rest[-1], "last"))}
    order = [*first, *(index for index in rest if index not in first)]
    return tuple(NotableRank(index, first.get(index, "")) for index in order)


def why_first(run: Run, first: Sequence[NotableRank]) -> str:
    """Return why the first rows of a table of many ranks are there; empty where it is in the order of ranks."""
    reasons = [f"{run.timelines[one.index].rank} {one.why}" for one in first if one.why]
    return f"Ranks first: {'; '.join(reasons)}." if reasons else ""


def _late(run: Run) -> list[int]:
    """Return the devices that others waited for during a notable part of the run, the longest first.

    In each step only what others waited for a device beyond its own waiting counts: the rest it has passed on. One that
    waits far longer in all is a victim.
    """
    across = run.cross_rank
    late, held = across.stragglers, np.zeros(len(run.devices))
    names, name_of = np.unique(across.matches.step[late.instance].astype(str), return_inverse=True)
    for index in np.unique(late.device).tolist():
        rows = np.flatnonzero(late.device == index)
        place = {name: number for number, name in enumerate(run.timelines[index].windows.names)}
        step = np.array([place.get(name, -1) for name in names.tolist()], np.int64)[name_of[rows]]
        waited = sums(step[step >= 0], late.waited_ns[rows[step >= 0]], len(place))
        # In a collective that lacks a rank, all may be waiting for it.
        own = across.exposed_waits[index].wait_ns + across.exposed_waits[index].unmatched_ns
        caused = np.maximum(waited - own, 0).sum()
        held[index] = caused if caused >= _OWN * own.sum() else 0.0
    wall = max(split.total()["wall_ns"] or 0 for split in run.splits)
    return [int(i) for i in np.argsort(-held, kind="stable") if held[i] > _NOTABLE * wall]


def _figures(run: Run, with_steps: list[int]) -> dict[str, NDArray[np.float64]]:
    """Return the figures that can make a device notable: means over its steps, in ns."""
    words = {"slowest": "wall_ns", "most exposed": "exposed_comm_ns", "most idle": "idle_ns"}
    means = [run.splits[index].mean() for index in with_steps]
    known = {word: name for word, name in words.items() if all(mean[name] is not None for mean in means)}
    return {word: np.array([mean[name] or 0.0 for mean in means]) for word, name in known.items()}


# The part of a run that is one typical step.


def middle_step_of(run: Run) -> Run:
    """Return the part of a run with its step of median length, on the devices that have it; none if it has no steps.

    As with :meth:`Run.select`, who waits for whom is known from the whole run.
    """
    return _around_middle(run, lambda windows, place: (place, place))


def middle_window_of(run: Run) -> Run:
    """Return the part of a run that was recorded together with that step; the run itself where that is all."""
    if not any(device.timeline.windows.gaps for device in run.devices):
        return run
    return _around_middle(run, Windows.recording)


def _around_middle(run: Run, steps: Callable[[Windows, int], tuple[int, int]]) -> Run:
    name = middle_step(run.devices)
    kept = [
        cut_to_steps(number, device, *steps(windows, windows.names.index(name)))
        for number, device in enumerate(run.devices)
        for windows in [device.timeline.windows]
        if name is not None and name in windows.names
    ]
    devices = tuple(part.device for part in kept)
    timelines = tuple(device.timeline for device in devices)
    return replace(run, timelines=timelines, devices=devices, selected_from=(run, tuple(kept)))
