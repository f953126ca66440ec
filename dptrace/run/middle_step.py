"""The part of a run that is one typical step."""

from __future__ import annotations

from dataclasses import replace

from dptrace.analysis.per_gpu.step_grid import middle_step
from dptrace.run.run import Run
from dptrace.run.select import cut_to_steps

__all__ = ["middle_step_of"]


def middle_step_of(run: Run) -> Run:
    """Return the part of a run with its step of median length, on the devices that have it; none if it has no steps.

    As with :meth:`Run.select`, who waits for whom is known from the whole run.
    """
    name = middle_step(run.devices)
    kept = [
        cut_to_steps(number, device, place, place)
        for number, device in enumerate(run.devices)
        if name is not None and name in device.timeline.windows.names
        for place in [device.timeline.windows.names.index(name)]
    ]
    devices = tuple(part.device for part in kept)
    timelines = tuple(device.timeline for device in devices)
    return replace(run, timelines=timelines, devices=devices, selected_from=(run, tuple(kept)))
