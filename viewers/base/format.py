"""Names of ranks and steps as every table and picture writes them."""

from __future__ import annotations

from rich.text import Text

from dptrace.core.text import sanitize
from dptrace.run.run import Run
from dptrace.timeline.model import Timeline

__all__ = ["plain", "rank_label", "step_label"]


def plain(text: str) -> Text:
    """Return a text from a trace without markup and control characters that a terminal would obey."""
    return Text(sanitize(text))


def step_label(name: str) -> str:
    """Shorten the profiler's step names to their number; return other names unchanged."""
    return name.removeprefix("ProfilerStep#")


def rank_label(run: Run, timeline: Timeline) -> str:
    """Return a GPU's rank, with its device index where the rank has several."""
    several = sum(other.rank == timeline.rank for other in run.timelines) > 1
    return f"{timeline.rank} GPU {timeline.device}" if several else str(timeline.rank)
