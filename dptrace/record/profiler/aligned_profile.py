"""torch's profiler over one window of steps, started at the same time on all ranks, and a stopwatch for steps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerAction, profile

from dptrace.record.profiler.gloo_threads import gloo_threads
from dptrace.record.profiler.quiet_stderr import quiet_stderr
from dptrace.record.ranks.accelerator import accelerator_of, used_accelerator
from dptrace.record.ranks.distributed import RankStore
from dptrace.record.windows.plan import Purpose, Window

__all__ = ["BARRIER_TIMEOUT", "AlignedProfile", "Stopwatch", "device_of"]

BARRIER_TIMEOUT = timedelta(seconds=10)
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
    """A profiler over one window of steps, whose ranks begin their first recorded step together.

    Ranks take different times to start the profiler; without a barrier the first recorded all-reduce would show the
    difference as wait for a peer.

    Args:
        window: its steps; the profiler is prepared before the first one. ``ProfilerStep#k`` is step k of the recording.
        choose_end: called before the barrier, when recording begins; it may change the end of the window.
        without_operators: leave the operators on the CPU out.
        device: where the training is.
        log: a file for what torch prints about the profiler; by default that is dropped.
    """

    def __init__(
        self,
        rank_store: RankStore,
        window: Window,
        choose_end: Callable[[], None] = lambda: None,
        without_operators: bool = False,
        device: torch.device | None = None,
        log: Path | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(schedule=self._action, **settings)
        self._device = device or torch.device("cpu")
        self._log = log
        self._ending = False
        self._window, self._rank_store, self._choose_end = window, rank_store, choose_end
        self._without_operators = without_operators
        self.step_num = window.first
        self.current_action = self._prev_schedule_action = self._action(window.first)

    def _action(self, step: int) -> Any:
        window = getattr(self, "_window", None)  # torch asks once before it is set
        return ProfilerAction.WARMUP if window is None or step < window.start else ProfilerAction.RECORD

    def prepare_trace(self) -> None:
        """Prepare for recording without Kineto's lines on the terminal."""
        with quiet_stderr(self._log):
            super().prepare_trace()

    def start_trace(self) -> None:
        """Start recording, then wait for the other ranks; the first ``ProfilerStep`` begins after that."""
        with quiet_stderr(self._log), _only_marks() if self._without_operators else nullcontext():
            super().start_trace()
        if threads := gloo_threads():
            self.add_metadata_json("gloo_threads", json.dumps(threads))
        # torch starts a profiler that ends in its warm-up; the other ranks do not start theirs then.
        if self._window.purpose is Purpose.RECORDED and not self._ending:
            self._choose_end()
            self._rank_store.barrier(f"recording{self._window.number}", BARRIER_TIMEOUT)

    def stop_trace(self) -> None:
        """Stop recording when the device that trains has done its work; torch waits for the current one only."""
        accelerator = accelerator_of(self._device)
        with quiet_stderr(self._log), nullcontext() if accelerator is None else accelerator.module.device(self._device):
            super().stop_trace()

    def finish(self) -> None:
        """Stop, at any point of the window."""
        self._ending = True
        self.__exit__(None, None, None)


@contextmanager
def _only_marks() -> Iterator[None]:
    """Make torch record annotations and the nodes of backward, but no operator of the CPU.

    torch.profiler has no option for it; its private function takes the scopes to record.
    """
    module: Any = autograd_profiler
    enable = module._enable_profiler
    scope = torch._C._profiler.RecordScope
    scopes = {scope.USER_SCOPE, scope.BACKWARD_FUNCTION}
    module._enable_profiler = lambda config, activities: enable(config, activities, scopes)
    try:
        yield
    finally:
        module._enable_profiler = enable


class Stopwatch:
    """Wall times of steps: on a GPU between two events in its stream, so that no step waits for the host."""

    def __init__(self, device: torch.device) -> None:
        accelerator = accelerator_of(device)
        self._device, self._module = device, None if accelerator is None else accelerator.module
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

    def end(self) -> Any:
        """End the time of the step, and return a lap for :meth:`durations_ns`."""
        return self._begin, self._now()

    def durations_ns(self, laps: Iterable[Any]) -> list[int]:
        """Return the wall time of each lap in ns."""
        if self._module is None:
            return [end - begin for begin, end in laps]
        self._module.synchronize(self._device)
        return [round(begin.elapsed_time(end) * 1e6) for begin, end in laps]
