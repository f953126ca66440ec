"""The heading above a picture of a run: its name, how it was recorded, and the notes on its figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from dptrace.core.units import share
from dptrace.run.run import Run
from dptrace.run.shared_clock import clocks_fact


@dataclass(frozen=True, slots=True)
class Headline:
    """Plain text from file and kernel names, which may be hostile: a page must escape it."""

    title: str
    path: str
    facts: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def line(self) -> str:
        """The name of the run and the facts on it."""
        return " · ".join((self.title, *self.facts))


def headline(run: Run) -> Headline:
    """Return the name of a run and a few facts on it."""
    title = Path(run.path).name or run.path
    facts = [str(run.metadata[key]) for key in ("mode", "model") if isinstance(run.metadata.get(key), str)]
    facts = [fact for fact in facts if fact != title]
    facts += [_ranks(run), _devices(run), _steps(run), _overhead(run)]
    return Headline(title, run.path, tuple(fact for fact in facts if fact), run.notes)


def drawn_headline(run: Run) -> Headline:
    """Return the headline above a picture of several ranks on one time axis, which says on whose clock they are."""
    head = headline(run)
    return replace(head, facts=(*head.facts, *filter(None, [clocks_fact(run)])))


_NOTABLE_OVERHEAD = 0.1
"""From here on the profiler's overhead is part of the heading: the figures are not those of an ordinary step."""


def _overhead(run: Run) -> str:
    overhead = run.metadata.get("profiler_overhead")
    if not isinstance(overhead, float) or overhead <= _NOTABLE_OVERHEAD:
        return ""
    return f"the profiler adds {share(overhead)} to a step"


def _ranks(run: Run) -> str:
    ranks = len({timeline.rank for timeline in run.timelines})
    shown = f"{ranks} of {run.world_size} ranks" if run.world_size > ranks else f"{ranks} ranks"
    return "1 rank" if shown == "1 ranks" else shown


def _devices(run: Run) -> str:
    if hosts := sorted({timeline.device_name for timeline in run.timelines if timeline.host_of}):
        return f"{' and '.join(hosts)}: its operators only"
    if any(timeline.on_cpu for timeline in run.timelines):
        gloo = any(timeline.collectives for timeline in run.timelines)
        return f"{'gloo on ' if gloo else ''}CPU: operators, not kernels"
    count = len({(timeline.rank, timeline.device) for timeline in run.timelines})
    models = " and ".join(sorted({t.device_name for t in run.timelines if t.device_name}))
    return f"{count} × {models}" if models else f"{count} GPU" + ("s" if count > 1 else "")


def _steps(run: Run) -> str:
    counts = sorted({len(timeline.windows) for timeline in run.timelines})
    if not counts:
        return ""
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{number} step" + ("" if number == "1" else "s")
