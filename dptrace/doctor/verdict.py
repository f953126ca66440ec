"""What a check of a recording concludes, and what it looks at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dptrace.run.run import Run
from dptrace.timeline.model import Timeline

__all__ = ["Level", "RecordedRun", "Verdict"]

Level = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check found."""

    what: str
    """What was checked, in a word or two."""
    level: Level
    """``warning`` if figures are less exact, ``wrong`` if some are missing or false."""
    why: str
    """What was found, a sentence or more; where something is wrong, also what to do."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A recording to check, and what it should contain."""

    run: Run
    ranks: int
    steps: int
    on_gpus: bool = False
    log: str = ""
    """What the ranks wrote to the terminal, which holds the messages of the profiler's library."""
    damage: str = ""
    """What the reader says about truncated, damaged or impossible data."""
    surroundings: tuple[str, ...] = ()
    """What may keep the profiler from the GPU's records here; see :func:`~dptrace.doctor.profiler_log.hindrances`."""

    def timelines(self) -> Iterator[Timeline]:
        """Return the timelines of the kind of device that was to be recorded."""
        return (timeline for timeline in self.run.timelines if timeline.on_cpu != self.on_gpus)
