"""Captures in a rank: the next steps are recorded with the profiler, as a run of its own, while the job goes on.

Who asks writes ``request-N.json`` into the watch's folder; :class:`~dptrace.record.windows.WindowRequests` lets all
ranks begin at the same step without a collective.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from dptrace.record import messages
from dptrace.record.distributed import RankStore
from dptrace.record.options.catalog import Schedule
from dptrace.record.output import StandaloneOutput
from dptrace.record.recording import Recording, latest
from dptrace.record.windows import Plan, Request, WindowRequests, recorded_windows

_POLL_NS = 1_000_000_000
"""How often a rank looks for requests: in the store each look takes about 0.1 ms."""
_WARMUP = 2
"""Steps before a capture in which the profiler runs and nothing is kept: it starts in the first of them."""


class Captures:
    """The captures of this rank; :meth:`step` is called at the end of each of its steps."""

    _begun = itertools.count()

    def __init__(self, folder: Path) -> None:
        self._folder, self._name = folder, f"watch{next(self._begun)}"
        # The store keeps what the ranks agreed on in an earlier watch of this process.
        self.recording: Recording | None = None
        self._output: StandaloneOutput | None = None
        self._requests: WindowRequests | None = None
        self._asked: Request | None = None
        self._count = 0
        self.next_look = time.perf_counter_ns() + _POLL_NS
        """When to look for requests, by ``time.perf_counter_ns``."""
        self.is_due = False
        """Whether each step matters: the profiler is on, or will be at a certain step, or one is being chosen."""

    @property
    def is_profiling(self) -> bool:
        """Whether the profiler may be on."""
        return self.recording is not None and not self.recording.is_over

    @property
    def disturbs(self) -> bool:
        """Whether the profiler may be on, or its trace is being written."""
        return self.is_profiling or self.writing

    @property
    def writing(self) -> bool:
        """Whether a trace is being written."""
        return self._output is not None and bool(self._output.writing)

    def step(self, next_step: int) -> None:
        """Record, if that is asked for; *next_step* is about to begin."""
        self._step(next_step)
        pending = self._requests is not None and self._requests.is_pending
        self.is_due = pending or self._asked is not None or self.is_profiling

    def _step(self, next_step: int) -> None:
        if self.recording is not None and not self.recording.is_over:
            self.recording.step()
            return
        if self._asked is not None:
            if next_step >= self._asked.first:
                self._begin(self._asked)
            return
        self.next_look = time.perf_counter_ns() + _POLL_NS
        if self.recording is not None:
            if self.writing:
                return
            self.close(None)
        self._asked = self._poll(next_step)

    def _poll(self, next_step: int) -> Request | None:
        if self._requests is None:
            if messages.world_size() > 1 and not (dist.is_available() and dist.is_initialized()):
                return None  # the ranks share no store
            self._requests = WindowRequests(self._folder, RankStore(self._name))
        return self._requests.poll(next_step)

    def _begin(self, asked: Request) -> None:
        self._asked = None
        self._count += 1
        running: Any = latest()
        if running is not None and running.is_running:
            return  # the script records itself
        path = self._folder / f"capture{self._count}"
        schedule = Schedule.of(asked.steps or 5, _WARMUP, 0)
        plan = Plan(schedule, tuple(recorded_windows(schedule)))
        self._output = StandaloneOutput(path, False, RankStore(f"{self._name}.{self._count}"), quiet=True)
        self.recording = Recording(plan, self._output)
        self.recording.__enter__()

    def close(self, error: BaseException | None) -> None:
        """End a capture, early or not."""
        recording, self.recording = self.recording, None
        if recording is not None:
            recording.close(error)
