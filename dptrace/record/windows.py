"""Windows of steps in which the profiler records, or in which steps are timed without it; imports no torch.

A recording is a list of windows, in order and without overlap. Windows with and without the profiler alternate to
measure its overhead, because the speed of a machine changes within seconds: one window of each kind, one after the
other, gave anything between -61 and +354 % on a busy machine, alternating ones 10 to 19 %.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dptrace.core.units import plural
from dptrace.record.distributed import RankStore
from dptrace.record.messages import NOTHING_RECORDED, LauncherSettings, request_path
from dptrace.record.options.catalog import OVERHEAD_STEPS, Schedule

_LONGEST = 6
"""Steps of an overhead window, at most."""
_SHORTEST = 3
"""Steps of an overhead window, at least: its first step is not timed."""
_WRITING_STEPS = 10
"""Steps after a recording that are not timed, because a thread of the rank writes the trace meanwhile."""
_LEAST_WARMUP = 2
"""What --warmup accepts, at least."""
_SPARE_STEPS = 10
"""Steps of a spare recording, at most."""
_FIRST_TYPICAL_STEP = 2
"""DDP rebuilds its buckets after its first step, so its second one may be untypical too."""


class Purpose(Enum):
    """What a window is for."""

    RECORDED = "recorded"
    """Its trace is the run."""
    SPARE = "spare"
    """Its trace is the run if training ends before a recorded window begins."""
    PROFILED = "profiled"
    """Its steps are timed with the profiler; its trace is a spare one."""
    UNPROFILED = "unprofiled"
    """Its steps are timed without the profiler."""


@dataclass(eq=False)
class Window:
    """The steps from *first* up to, but not including, *end*; those from *start* on are timed or recorded."""

    purpose: Purpose
    first: int
    """The step before which the profiler is prepared: its warm-up begins."""
    start: int
    end: int
    number: int = 0
    """Of recorded windows: 1 for the first of the job."""
    laps: list[Any] = field(default_factory=list)
    """The times of its steps, as the stopwatch returns them."""
    more: int = 0
    """Steps beyond those that were asked for, in which it could not end."""
    cpu_ns: list[int] = field(default_factory=list)
    """The processor time of all threads of this process in its steps."""
    core_wait_ns: list[int] = field(default_factory=list)
    """How long the thread that trains could run in its steps but had no core; empty where the system does not say."""

    @property
    def steps(self) -> int:
        """The number of steps to time or record."""
        return self.end - self.start

    @property
    def profiled(self) -> bool:
        """Whether the profiler is on."""
        return self.purpose is not Purpose.UNPROFILED

    def whole_steps(self, steps_done: int) -> int:
        """Return how many of its steps have ended after *steps_done* steps."""
        return min(max(steps_done - self.start, 0), self.steps)

    def later(self, by: int) -> Window:
        """Return the window moved by a number of steps."""
        return Window(self.purpose, self.first + by, self.start + by, self.end + by, self.number)


def recorded_windows(schedule: Schedule, first_number: int = 1, repeat: int = 1, every: int = 0) -> list[Window]:
    """Return the windows of a schedule.

    Args:
        first_number: number of the first window.
        repeat: how many windows to record.
        every: steps from the beginning of one window to that of the next.
    """
    step = max(every, schedule.warmup + schedule.steps)
    firsts = [schedule.wait + count * step for count in range(repeat)]
    return [
        Window(Purpose.RECORDED, first, first + schedule.warmup, first + schedule.warmup + schedule.steps, number)
        for number, first in enumerate(firsts, first_number)
    ]


def overhead_windows(first: int, room: int = OVERHEAD_STEPS) -> list[Window]:
    """Return windows without and with the profiler alternately; the first and the last are without.

    The first step of each window is not timed: the profiler has just started or stopped. In a room too small for
    three windows, all steps are timed without the profiler.

    Args:
        first: the step at which they begin.
        room: the number of steps that they may take.
    """
    count = 5 if room >= 5 * _SHORTEST else 3 if room >= 3 * _SHORTEST else 1
    if count == 1:
        return [Window(Purpose.UNPROFILED, first, first, first + room)] if room > 0 else []
    length = min(room // count, _LONGEST)
    begins = [first + number * length for number in range(count)]
    return [
        Window(Purpose.PROFILED if number % 2 else Purpose.UNPROFILED, begin, begin + 1, begin + length)
        for number, begin in enumerate(begins)
    ]


def spare_windows(schedule: Schedule) -> list[Window]:
    """Return a window early in the wait of a schedule, for a training that ends before the wait does.

    It has few steps: nobody may need them, and their events are held in memory.
    """
    end = min(_FIRST_TYPICAL_STEP + min(schedule.steps, _SPARE_STEPS), schedule.wait)
    if end <= _FIRST_TYPICAL_STEP:
        return []
    return [Window(Purpose.SPARE, _FIRST_TYPICAL_STEP - 1, _FIRST_TYPICAL_STEP, end)]


def steps_in(duration_s: float, step_s: float) -> int:
    """Return how many steps take this long, at least 1."""
    return max(1, math.ceil(duration_s / step_s)) if step_s > 0 else 1


@dataclass(frozen=True)
class Plan:
    """What to record of a loop."""

    schedule: Schedule
    windows: tuple[Window, ...]
    """The windows that are known before the first step."""
    settings: LauncherSettings = field(default_factory=LauncherSettings)

    @classmethod
    def of(cls, schedule: Schedule, settings: LauncherSettings | None = None) -> Plan:
        """Plan the windows of a schedule.

        Args:
            settings: what the launcher asks for; None without one.
        """
        settings = settings or LauncherSettings()
        if not settings.script or not settings.folder:  # no launcher asks for the overhead
            (recorded,) = recorded_windows(schedule)
            if schedule.wait:
                before = overhead_windows(schedule.warmup, schedule.wait - schedule.warmup)
                return cls(schedule, (*before, recorded), settings)
            return cls(schedule, (recorded, *overhead_windows(recorded.end + _WRITING_STEPS)), settings)
        if settings.on_demand:
            return cls(schedule, (), settings)
        # Of a script, the overhead is measured when the run is written: it may be shorter than both together.
        several = recorded_windows(schedule, repeat=settings.repeat, every=settings.every)
        return cls(schedule, (*spare_windows(schedule), *several), settings)

    @property
    def last_step(self) -> int:
        """The number of steps after which everything is recorded."""
        return max((window.end for window in self.windows if window.purpose is Purpose.RECORDED), default=0)

    @property
    def recorded(self) -> Window | None:
        """The first window to record; None if windows are recorded on demand."""
        return next((window for window in self.windows if window.purpose is Purpose.RECORDED), None)

    def requested(self, kind: str, first: int, number: int, coming: Iterable[Window] = ()) -> list[Window]:
        """Return the windows that begin at step *first* on request; the first recorded one gets this number.

        Args:
            coming: the windows that are still to come, in order. Those that measure the overhead delay none of them.
        """
        if kind == "overhead":
            for window in coming:
                if window.purpose is Purpose.RECORDED and window.first < first + OVERHEAD_STEPS and first < window.end:
                    first = window.end + _WRITING_STEPS
            return overhead_windows(first)
        (window,) = recorded_windows(self.schedule, number)
        return [window.later(first - window.first)]

    def resume_notes(self, first_step: int) -> list[str]:
        """Return the notes on a training that continues from a step."""
        if not first_step:
            return []
        notes = [f"The training continued from the checkpoint of step {first_step}."]
        if self.schedule.warmup < 2:
            warmup = plural(self.schedule.warmup, "warm-up step")
            notes.append(f"Only {warmup} ran before the recorded steps, which may be slower.")
        return notes

    def too_short_message(self, steps_done: int, postponed: bool = False) -> str:
        """Return why nothing was recorded of a training of this many steps, and what to do.

        Args:
            postponed: whether the script's own profiler was active when recording was to begin.
        """
        if self.recorded is None:
            return f"{NOTHING_RECORDED}no recording was requested while the training ran."
        wait, start = self.recorded.first, self.recorded.start
        if postponed:
            return (
                f"{NOTHING_RECORDED}the training made {plural(steps_done, 'step')}, the script's own profiler was "
                f"active when recording was to begin, after {start}. Train for more steps, or take the script's own "
                "traces as the run: --use-script-profiler."
            )
        # The steps of a script are counted from its first one on, in which it becomes known that there are steps.
        first, before = (1, "the first, ") if self.settings.script else (0, "")
        made, warmup = steps_done + first, start - wait
        text = (
            f"{NOTHING_RECORDED}the training made {plural(made, 'step')}, and recording begins after "
            f"{start + first} ({before}wait {wait}, warmup {warmup}). "
        )
        least = first + _LEAST_WARMUP + 1
        if made < least:
            return f"{text}Train for at least {least} steps, with --warmup {_LEAST_WARMUP}."
        shorter = [*(["--wait 0"] if wait else []), *([f"--warmup {_LEAST_WARMUP}"] if warmup > _LEAST_WARMUP else [])]
        return f"{text}Train for more steps{' or use ' + ' '.join(shorter) if shorter else ''}."

    def adopted_note(self, steps_done: int) -> str:
        """Return the note that the script's own profiler left no room, and that its trace is the run."""
        begin = f"after {plural(self.recorded.start, 'step')}" if self.recorded is not None else "on demand"
        return (
            f"The script's own profiler was active whenever dptrace's was to begin, {begin} of {steps_done:,}; so its "
            "trace is the run, as with --use-script-profiler."
        )

    def spare_note(self, spare: Window, steps_done: int) -> str:
        """Return the note that a training ended early and what of it was recorded instead."""
        assert self.recorded is not None
        recorded = self.recorded
        return (
            f"The training ended after {plural(steps_done, 'step')}; recording was to begin after {recorded.start}. "
            f"Wait and warm-up were cut to {plural(spare.start, 'step')}: recorded {spare.whole_steps(steps_done)} of "
            f"{plural(recorded.steps, 'step')} asked for."
        )


# Windows that the launcher asks for while training runs: all ranks begin one at the same step.
#
# The launcher writes a file. Rank 0 finds it and publishes it through the ranks' key-value store; each rank says that
# it has seen it, and from then on looks at each step. Only then rank 0 chooses the step, so that none can miss it,
# however long the steps are. No collective is needed, which would show in the trace.


_POLL_NS = 50_000_000
"""A rank looks for requests at most this often: on shared storage, or in the store, each look takes time."""
_LEAD_STEPS = 4
"""Steps between the choice of a step and its beginning: ranks may be some apart although they exchange gradients."""


class Request(NamedTuple):
    """Windows to begin at a step."""

    kind: Literal["record", "overhead"]
    first: int
    steps: int | None = None
    """How many to record, where that is asked for."""


class WindowRequests:
    """The requests of this job, in order.

    Args:
        folder: where the requests are.
    """

    def __init__(self, folder: Path, rank_store: RankStore) -> None:
        self._folder, self._rank_store = folder, rank_store
        self._next = 1
        self._polled_ns = time.monotonic_ns()
        self._seen: dict[str, Any] | None = None

    @property
    def is_pending(self) -> bool:
        """Whether this rank has seen a request that has no step yet, and must look at each of its steps."""
        return self._seen is not None

    def poll(self, step: int) -> Request | None:
        """Return the next request, if its step is chosen; *step* is about to begin."""
        key = f"request/{self._next}"
        if self._seen is None:
            self._seen = self._look(key)
            if self._seen is None:
                return None
            self._rank_store.arrive(f"{key}/seen")
        first = self._choose(key, step) if self._rank_store.rank == 0 else self._rank_store.peek(f"{key}/first")
        if first is None:
            return None
        request = Request(self._seen["kind"], int(first), self._seen.get("steps"))
        self._next, self._seen = self._next + 1, None
        return request

    def _look(self, key: str) -> dict[str, Any] | None:
        now = time.monotonic_ns()
        if now - self._polled_ns < _POLL_NS:
            return None
        self._polled_ns = now
        if self._rank_store.rank != 0:
            text = self._rank_store.peek(key)
            return None if text is None else dict(json.loads(text))
        try:
            asked = dict(json.loads(request_path(self._folder, self._next).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None
        self._rank_store.publish(key, json.dumps(asked))
        return asked

    def _choose(self, key: str, step: int) -> str | None:
        # None have arrived where nothing connects the ranks, or there is one.
        if 0 < self._rank_store.count(f"{key}/seen") < self._rank_store.size:
            return None
        first = str(step + (_LEAD_STEPS if self._rank_store.size > 1 else 0))
        self._rank_store.publish(f"{key}/first", first)
        return first
