"""Select ranks and steps of a run; their figures stay those of the whole run."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of
from dptrace.errors import DptraceError
from dptrace.timeline.model import Timeline
from dptrace.timeline.steps import select_steps

__all__ = ["selected_devices"]


def selected_devices(
    path: str, devices: Sequence[DeviceFigures], ranks: Collection[int] | None, steps: tuple[int, int] | None
) -> tuple[tuple[DeviceFigures, ...], tuple[str, ...]]:
    """Keep the GPUs of the given ranks and the steps with the given numbers; also return notes on the selection.

    Raises:
        DptraceError: no rank or step matches; the message lists those of the run.
    """
    kept, notes = tuple(devices), list[str]()
    if ranks is not None:
        kept = tuple(device for device in kept if device.timeline.rank in ranks)
        if not kept:
            known = ", ".join(str(rank) for rank in sorted({device.timeline.rank for device in devices}))
            raise DptraceError(f"{path}: none of the selected ranks is in the run. Choose from {known}.")
    if steps is not None:
        timelines = [timeline for device in kept if (timeline := _selected_steps(device.timeline, *steps))]
        if not timelines:
            known = _known_steps(devices[0].timeline)
            raise DptraceError(f"{path}: no step has a number from {steps[0]} to {steps[1]}. {known}")
        kept = tuple(map(figures_of, timelines))
        notes.append(f"Only steps {steps[0]} to {steps[1]} are selected.")
    return kept, tuple(notes)


def _number(name: str) -> int | None:
    match = re.search(r"(\d+)$", name)
    return int(match[1]) if match else None


def _known_steps(timeline: Timeline) -> str:
    names = timeline.windows.names
    if not names:
        return "The run has no steps."
    return f"The run has {names[0]} to {names[-1]}." if len(names) > 1 else f"The run has one step: {names[0]}."


def _selected_steps(timeline: Timeline, first: int, last: int) -> Timeline | None:
    """Cut a timeline to the steps with the selected numbers; None where it has no such step."""
    numbers = [_number(name) for name in timeline.windows.names]
    kept = [index for index, number in enumerate(numbers) if number is not None and first <= number <= last]
    return select_steps(timeline, kept[0], kept[-1]) if kept else None
