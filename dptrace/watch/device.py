"""Device time of the stages: CUDA events at their borders, in every tenth step. Nothing waits for the device.

An event is recorded on the current stream where a stage begins or ends on the host, and asked for later whether the
device has come that far. So a stage's device time is what passes on that stream from one border to the next, gaps
included: where the device never waits for the host, that of the work which the stage has launched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from dptrace.record.safety import harmless
from dptrace.watch.records import OTHER, STAGES

_EVERY = 10
"""Steps of which one is measured, so that it costs the host little."""
_MOST_PENDING, _MOST_BORDERS = 8, 4096
"""Measured steps whose events the GPU has not reached, and events of a step, above which a step is not measured."""


class DeviceStages:
    """Times the stages of some steps on the device.

    Args:
        event: makes an event that can be recorded, asked and compared, as ``torch.cuda.Event`` with timing.
        is_capturing: whether a CUDA graph is being captured, in which no event may be recorded.
    """

    def __init__(self, event: Callable[[], Any], is_capturing: Callable[[], bool]) -> None:
        self.measuring = False
        """Whether :meth:`border` is wanted."""
        self._event, self._is_capturing, self._step = event, is_capturing, 0
        self._free: list[Any] = []
        self._open: list[tuple[int, Any]] = []
        self._pending: deque[tuple[int, list[tuple[int, Any]]]] = deque()

    @harmless("timing the stages on the device")
    def border(self, ended: int) -> None:
        """Mark where a stage ends on the host, and the next one begins."""
        if len(self._open) >= _MOST_BORDERS or self._is_capturing():
            self.measuring = False
            return
        event = self._free.pop() if self._free else self._event()
        event.record()
        self._open.append((ended, event))

    def next_step(self, step: int) -> None:
        """End a step, and begin the one of this number."""
        if self.measuring:
            self.border(OTHER)
        if self.measuring:
            self._pending.append((self._step, self._open))
        else:
            self._free += [event for _, event in self._open]
        self._open, self._step = [], step
        self.measuring = step % _EVERY == 0 and len(self._pending) < _MOST_PENDING
        if self.measuring:
            self.border(OTHER)

    def done(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the steps that the device has ended: number, and ns of each stage."""
        while self._pending and self._pending[0][1][-1][1].query():
            step, borders = self._pending.popleft()
            spent = [0] * len(STAGES)
            for (_, before), (stage, event) in pairwise(borders):
                spent[stage] += round(before.elapsed_time(event) * 1e6)
            self._free += [event for _, event in borders]
            yield step, spent
