"""torch's profiler, started at the same time on all ranks, and a stopwatch that does not wait for the device."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
from torch.profiler import profile

from dptrace.record.accelerator import accelerator_of, used_accelerator
from dptrace.record.distributed import RankStore
from dptrace.record.gloo_threads import gloo_threads
from dptrace.record.quiet_stderr import quiet_stderr

__all__ = ["AlignedProfile", "Stopwatch", "device_of"]

_BARRIER_TIMEOUT = timedelta(seconds=10)
"""How long a rank waits for the others before it records without them: they may not train together."""


def device_of(parameters: Iterable[torch.Tensor]) -> torch.device:
    """Return the device on which these parameters are trained: a GPU if one of them is there, else the CPU.

    The presence of a GPU proves nothing, because a machine with GPUs can train on its CPU. If no parameter is known,
    a GPU that this process has used counts.
    """
    devices = [parameter.device for parameter in parameters]
    if not devices and (used := used_accelerator()) is not None:
        return torch.device(used.device_type, used.module.current_device())
    return next((device for device in devices if accelerator_of(device) is not None), torch.device("cpu"))


class AlignedProfile(profile):
    """A profiler whose ranks begin their first recorded step together.

    Ranks take different times to start the profiler; without a barrier the first recorded all-reduce would show the
    difference as wait for a peer.
    """

    def __init__(self, rank_store: RankStore, **settings: Any) -> None:
        super().__init__(**settings)
        self._rank_store = rank_store

    def prepare_trace(self) -> None:
        """Prepare for recording without Kineto's lines on the terminal."""
        with quiet_stderr():
            super().prepare_trace()

    def stop_trace(self) -> None:
        """Stop recording without Kineto's lines on the terminal."""
        with quiet_stderr():
            super().stop_trace()

    def start_trace(self) -> None:
        """Start recording, then wait for the other ranks; the first ``ProfilerStep`` begins after that."""
        with quiet_stderr():
            super().start_trace()
        if threads := gloo_threads():
            self.add_metadata_json("gloo_threads", json.dumps(threads))
        self._rank_store.barrier("recording", _BARRIER_TIMEOUT)

    def finish(self) -> None:
        """Stop, at any point of the schedule."""
        self.__exit__(None, None, None)


class Stopwatch:
    """Wall times of steps: on a GPU between two events in its stream, so that no step waits for the host."""

    def __init__(self, device: torch.device) -> None:
        accelerator = accelerator_of(device)
        self._device, self._module = device, None if accelerator is None else accelerator.module
        self._step_events: list[tuple[Any, Any]] = []
        self._begin: Any = None

    def _now(self) -> Any:
        if self._module is None:
            return time.perf_counter_ns()
        # Not every script calls set_device, so the current device may not be the one that trains.
        with self._module.device(self._device):
            event = self._module.Event(enable_timing=True)
            event.record(self._module.current_stream(self._device))
        return event

    def begin(self) -> None:
        """Start the time of a step."""
        self._begin = self._now()

    def end(self) -> None:
        """End the time of the step."""
        self._step_events.append((self._begin, self._now()))

    def durations_ns(self) -> list[int]:
        """Return the wall time of each step in ns."""
        if self._module is None:
            return [end - begin for begin, end in self._step_events]
        self._module.synchronize(self._device)
        return [round(begin.elapsed_time(end) * 1e6) for begin, end in self._step_events]
