"""Select ranks and steps of a run; their figures stay those of the whole run."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of
from dptrace.errors import UsageError
from dptrace.timeline.model import Timeline
from dptrace.timeline.steps import select_steps_with_mask

__all__ = ["KeptDevice", "all_steps", "cut_to_steps", "numbers_of_ranks", "selection_note", "step_number", "with_steps"]


def numbers_of_ranks(path: str, devices: Sequence[DeviceFigures], ranks: Collection[int]) -> tuple[int, ...]:
    """Return the indices of the devices of these ranks.

    Raises:
        UsageError: none of the ranks is there; the message lists those of the run.
    """
    numbers = tuple(number for number, device in enumerate(devices) if device.timeline.rank in ranks)
    if not numbers:
        known = ", ".join(str(rank) for rank in sorted({device.timeline.rank for device in devices}))
        raise UsageError(f"{path}: none of the selected ranks is in the run. Choose from {known}.")
    return numbers


class KeptDevice(msgspec.Struct, frozen=True):
    """A device of a run, as far as it is selected."""

    number: int
    """Its index in the run that it was selected from."""
    device: DeviceFigures
    steps: slice
    calls: NDArray[np.bool_]
    """Which of its collectives are kept."""


def all_steps(number: int, device: DeviceFigures) -> KeptDevice:
    """Keep a device whole."""
    calls = np.ones(int((device.timeline.collective >= 0).sum()), np.bool_)
    return KeptDevice(number, device, slice(None), calls)


def with_steps(path: str, devices: Sequence[DeviceFigures], steps: tuple[int, int]) -> tuple[KeptDevice, ...]:
    """Cut the devices to the steps with these numbers; devices without any of them are left out.

    Raises:
        UsageError: no step has such a number; the message names those of the run.
    """
    kept = [cut for number, device in enumerate(devices) if (cut := _selected_steps(number, device, *steps))]
    if not kept:
        known = _known_steps(devices[0].timeline)
        typed = f"{steps[0]}" if steps[0] == steps[1] else f"from {steps[0]} to {steps[1]}"
        raise UsageError(f"{path}: no step has a number {typed}. {known}")
    return tuple(kept)


def selection_note(first: int, last: int) -> str:
    """Return the note on the selected steps, so that a part is not mistaken for the whole run."""
    return f"Only step {first} is selected." if first == last else f"Only steps {first} to {last} are selected."


def step_number(name: str) -> int | None:
    """Return the number at the end of a step's name; None for a name without one, or with one that no step has."""
    match = re.search(r"(?<!\d)(\d{1,18})$", name)
    return int(match[1]) if match else None


def _known_steps(timeline: Timeline) -> str:
    names = timeline.windows.names
    if not names:
        return "The run has no steps."
    return f"The run has {names[0]} to {names[-1]}." if len(names) > 1 else f"The run has one step: {names[0]}."


def _selected_steps(number: int, device: DeviceFigures, first: int, last: int) -> KeptDevice | None:
    """Cut a device to the steps with the selected numbers; None where it has no such step."""
    timeline = device.timeline
    numbers = [step_number(name) for name in timeline.windows.names]
    kept = [index for index, own in enumerate(numbers) if own is not None and first <= own <= last]
    if not kept:
        return None
    return cut_to_steps(number, device, kept[0], kept[-1])


def cut_to_steps(number: int, device: DeviceFigures, first: int, last: int) -> KeptDevice:
    """Cut a device to the steps at these places."""
    timeline, intervals = select_steps_with_mask(device.timeline, first, last)
    calls = intervals[device.timeline.collective >= 0]
    return KeptDevice(number, figures_of(timeline), slice(first, last + 1), calls)
