"""torch's profiler, started on all ranks at one moment, and a stopwatch that stays on the device."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
from torch.profiler import profile

from dptrace.record.world import Meeting

__all__ = ["AlignedProfile", "Stopwatch"]

_PATIENCE = timedelta(seconds=10)
"""How long a rank waits for the others before it records without them: processes that do not train together."""


class AlignedProfile(profile):
    """A profiler whose ranks begin their first recorded step together.

    Switching the profiler on takes each rank its own time; without the meeting the first recorded all-reduce
    would show the difference as time waited for a peer.
    """

    def __init__(self, meeting: Meeting, **settings: Any) -> None:
        super().__init__(**settings)
        self._meeting = meeting

    def start_trace(self) -> None:
        """Switch to recording, then wait for the other ranks; the first ``ProfilerStep`` begins after that."""
        super().start_trace()
        self._meeting.wait("recording", _PATIENCE)

    def finish(self) -> None:
        """Stop, wherever in its schedule it is."""
        self.__exit__(None, None, None)


class Stopwatch:
    """Wall times of steps: between two CUDA events where there is a GPU, so that no step waits for the host."""

    def __init__(self) -> None:
        self._on_gpu = torch.cuda.is_available()
        self._laps: list[tuple[Any, Any]] = []
        self._begun: Any = None

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self) -> None:
        """Begin a step."""
        self._begun = self._now()

    def end(self) -> None:
        """End the step."""
        self._laps.append((self._begun, self._now()))

    def laps(self) -> list[int]:
        """Give the wall time of each step in ns."""
        if not self._on_gpu:
            return [end - begin for begin, end in self._laps]
        torch.cuda.synchronize()
        return [round(begin.elapsed_time(end) * 1e6) for begin, end in self._laps]
