"""Part of a run: some of its ranks, some of its steps, with the figures that these have in the whole."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from dptrace.errors import DptraceError
from dptrace.run.run import Run
from dptrace.timeline.model import Timeline
from dptrace.timeline.steps import between

__all__ = ["select"]


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
    return replace(run, timelines=timelines, devices=(), notes=tuple(notes))


def _number(name: str) -> int | None:
    match = re.search(r"(\d+)$", name)
    return int(match[1]) if match else None


def _there(run: Run) -> str:
    names = run.timelines[0].windows.names
    return f"There are: {names[0]} to {names[-1]}." if len(names) > 1 else f"There is one: {', '.join(names)}."


def _steps(timeline: Timeline, first: int, last: int) -> Timeline | None:
    """Keep the steps of one timeline whose numbers are asked for."""
    numbers = [_number(name) for name in timeline.windows.names]
    kept = [index for index, number in enumerate(numbers) if number is not None and first <= number <= last]
    if not kept:
        return None
    return between(timeline, kept[0], kept[-1])
