"""Part of a run: some of its ranks, some of its steps, with the figures that these have in the whole."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from dptrace.errors import DptraceError, UsageError
from dptrace.run import Run
from dptrace.timeline import AFTER_LAST, BEFORE_FIRST, Timeline, Windows

__all__ = ["parse_ranks", "parse_steps", "select"]


def parse_ranks(text: str) -> frozenset[int]:
    """Read ``0,2`` or ``0-3,8``.

    Raises:
        UsageError: it is neither.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise UsageError(f"--ranks {text}: give numbers and ranges, for example 0,1 or 0-3.")
        first, last = int(match[1]), int(match[2] or match[1])
        ranks |= set(range(first, last + 1))
    return frozenset(ranks)


def parse_steps(text: str) -> tuple[int, int]:
    """Read ``4`` or ``4:6``: the first and the last step, both shown, by their numbers in the trace.

    Raises:
        UsageError: it is neither.
    """
    match = re.fullmatch(r"\s*(\d+)(?::(\d+))?\s*", text)
    if not match or int(match[2] or match[1]) < int(match[1]):
        raise UsageError(f"--steps {text}: give the first and the last number, for example 4:6, or one, 4.")
    return int(match[1]), int(match[2] or match[1])


def select(run: Run, ranks: Collection[int] | None = None, steps: tuple[int, int] | None = None) -> Run:
    """Keep these ranks and these steps of a run, and say so in its notes.

    Raises:
        DptraceError: nothing is left; the message says what there is.
    """
    timelines, notes = run.timelines, list(run.notes)
    if ranks is not None:
        timelines = tuple(timeline for timeline in timelines if timeline.rank in ranks)
        if not timelines:
            there = ", ".join(str(rank) for rank in sorted({timeline.rank for timeline in run.timelines}))
            raise DptraceError(f"{run.path}: none of the ranks asked for is here; there are: {there}.")
    if steps is not None:
        cut = [_steps(timeline, *steps) for timeline in timelines]
        timelines = tuple(timeline for timeline in cut if timeline)
        if not timelines:
            raise DptraceError(f"{run.path}: no step has a number from {steps[0]} to {steps[1]}. {_there(run)}")
        notes.append(f"Only steps {steps[0]} to {steps[1]} are shown, as asked.")
    return replace(run, timelines=timelines, notes=tuple(notes))


def _number(name: str) -> int | None:
    match = re.search(r"(\d+)$", name)
    return int(match[1]) if match else None


def _there(run: Run) -> str:
    names = run.timelines[0].windows.names
    return f"There are: {names[0]} to {names[-1]}." if len(names) > 1 else f"There is one: {', '.join(names)}."


def _steps(timeline: Timeline, first: int, last: int) -> Timeline | None:
    """Keep the steps of one timeline, and the intervals that touch or belong to them."""
    numbers = [_number(name) for name in timeline.windows.names]
    kept = [index for index, number in enumerate(numbers) if number is not None and first <= number <= last]
    if not kept:
        return None
    low, high = kept[0], kept[-1]
    windows = Windows(timeline.windows.names[low : high + 1], timeline.windows.bounds[low : high + 2])
    step = timeline.step
    moved = np.where(step > high, AFTER_LAST, np.where((step >= 0) & (step < low), BEFORE_FIRST, step))
    moved = np.where(moved >= 0, moved - low, moved).astype(np.int32)
    touching = (timeline.start_ns < windows.bounds[-1]) & (timeline.end_ns > windows.bounds[0])
    chosen = touching | (moved >= 0)
    columns = ("start_ns", "end_ns", "name", "kind", "phase", "lane", "collective")
    return replace(
        timeline,
        windows=windows,
        step=moved[chosen],
        **{column: getattr(timeline, column)[chosen] for column in columns},
    )
