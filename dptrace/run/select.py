"""Select ranks and steps of a run; their figures stay those of the whole run."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of
from dptrace.errors import DptraceError
from dptrace.timeline.model import Timeline
from dptrace.timeline.steps import select_steps

__all__ = ["numbers_of_ranks", "with_steps"]


def numbers_of_ranks(path: str, devices: Sequence[DeviceFigures], ranks: Collection[int]) -> tuple[int, ...]:
    """Return the indices of the devices of these ranks.

    Raises:
        DptraceError: none of the ranks is there; the message lists those of the run.
    """
    numbers = tuple(number for number, device in enumerate(devices) if device.timeline.rank in ranks)
    if not numbers:
        known = ", ".join(str(rank) for rank in sorted({device.timeline.rank for device in devices}))
        raise DptraceError(f"{path}: none of the selected ranks is in the run. Choose from {known}.")
    return numbers


def with_steps(path: str, devices: Sequence[DeviceFigures], steps: tuple[int, int]) -> tuple[DeviceFigures, ...]:
    """Cut the devices to the steps with these numbers; devices without any of them are left out.

    Raises:
        DptraceError: no step has such a number; the message names those of the run.
    """
    timelines = [cut for device in devices if (cut := _selected_steps(device.timeline, *steps))]
    if not timelines:
        known = _known_steps(devices[0].timeline)
        raise DptraceError(f"{path}: no step has a number from {steps[0]} to {steps[1]}. {known}")
    return tuple(map(figures_of, timelines))


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
