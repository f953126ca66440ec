"""A run: all ranks that were recorded together, and its figures as tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dptrace.split import FIGURES, Split, split
from dptrace.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Run", "open_run"]


@dataclass(frozen=True)
class Run:
    """What was recorded of one job: a timeline per GPU, sorted by rank and device."""

    path: str
    """As the user named it."""
    timelines: tuple[Timeline, ...]
    info: dict[str, Any] = field(default_factory=dict)
    """The contents of ``run.json``; empty for traces that dptrace did not record."""
    notes: tuple[str, ...] = ()
    """What was missing, dropped or repaired, a sentence each; to be shown with every figure."""
    world_size: int = 0
    """How many ranks the job had, as far as the files say; more than there are timelines when files are missing."""
    splits: tuple[Split, ...] = field(init=False)
    """The split of each timeline, in the same order."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "splits", tuple(split(timeline) for timeline in self.timelines))
