"""Runs that every view must show: no rank, one rank, uneven ranks, CPUs, many ranks, and hostile names."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from msgspec.structs import replace

from dptrace import Run
from dptrace.timeline.model import Collective, Phase, Timeline, Windows
from dptrace.viewers.base.marks import Axis, Box, Dot, Drawing, Entry, Label, Line, linear_axis
from tests.support.builders import TimelineBuilder, two_rank_timelines

PAYLOAD = (
    '</script></title></svg><script>PWN("script")</script><img src=x onerror=PWN("img")>"\'`${PWN("template")} '
    "$$\\href{javascript:PWN(1)}{x}$$ {{7*7}} @name{safe} ]]> &lt; \u2028 \u202e \x1b[31m \ufffe"
)


def _one_rank() -> Run:
    """One of two ranks, whose collectives cannot be matched."""
    return Run("runs/one", two_rank_timelines()[:1], world_size=2)


def _without_communication() -> Run:
    step = (
        TimelineBuilder(bounds=(0, 50_000_000)).compute(0, 20_000_000).compute(20_000_000, 45_000_000, Phase.BACKWARD)
    )
    return Run("runs/alone", (step.build(),), world_size=1)


def _uneven() -> Run:
    """Three ranks with one, two and three steps."""
    timelines = []
    for rank in range(3):
        builder = TimelineBuilder(rank, bounds=tuple(range(0, (rank + 2) * 1_000_000, 1_000_000)))
        for step in range(rank + 1):
            start = step * 1_000_000
            builder.compute(start, start + 600_000).all_reduce(start + 500_000, start + 800_000 + rank * 1_000)
        timelines.append(builder.build())
    return Run("runs/uneven", tuple(timelines), world_size=3)


def _on_cpu() -> Run:
    return Run("runs/cpu", tuple(replace(timeline, device=-1) for timeline in two_rank_timelines()), world_size=2)


def many_ranks(ranks: int = 64) -> Run:
    """Many ranks with two steps, one of them slower."""
    timelines = []
    for rank in range(ranks):
        builder = TimelineBuilder(rank, bounds=(0, 10_000_000, 20_000_000))
        for start in (0, 10_000_000):
            middle = start + (4_500_000 if rank == ranks // 2 else 3_000_000)
            builder.compute(start, middle).compute(middle, middle + 4_000_000, Phase.BACKWARD)
            builder.all_reduce(start + 6_000_000, start + 9_000_000)
        timelines.append(builder.build())
    return Run("runs/many", tuple(timelines), world_size=ranks)


def _hostile(timeline: Timeline) -> Timeline:
    steps = tuple(f"{PAYLOAD}{name}" for name in timeline.windows.names)
    attack = [
        replace(c, kind=PAYLOAD, dtype=PAYLOAD, group=PAYLOAD, description=PAYLOAD, label=PAYLOAD)
        for c in timeline.collectives
    ]
    return replace(
        timeline,
        names=tuple(PAYLOAD + name for name in timeline.names),
        device_name=PAYLOAD,
        windows=Windows(steps, timeline.windows.bounds),
        collectives=tuple(attack),
        path=PAYLOAD,
    )


def hostile_run() -> Run:
    """A run with hostile text everywhere."""
    timelines = tuple(map(_hostile, two_rank_timelines()))
    info = {"mode": PAYLOAD, "model": PAYLOAD, "command": [PAYLOAD], "versions": {PAYLOAD: PAYLOAD}, PAYLOAD: PAYLOAD}
    return Run(f"runs/{PAYLOAD}", timelines, info, (PAYLOAD,), 2)


def _no_time() -> Run:
    """A rank whose only step has no duration."""
    timeline = TimelineBuilder(bounds=(0, 100)).compute(0, 0).build()
    return Run("runs/nothing", (replace(timeline, windows=Windows(("step",), np.zeros(2, np.int64))),))


def _unsized() -> Run:
    """Collectives whose size is not recorded."""
    timelines = [replace(t, collectives=(Collective("all_reduce"),) * len(t.collectives)) for t in two_rank_timelines()]
    return Run("runs/unsized", tuple(timelines), world_size=2)


_CASES: dict[str, Callable[[], Run]] = {
    "empty": lambda: Run("runs/empty", ()),
    "one rank": _one_rank,
    "two ranks": lambda: Run("runs/two", two_rank_timelines(), world_size=2),
    "no communication": _without_communication,
    "uneven": _uneven,
    "cpu": _on_cpu,
    "no time": _no_time,
    "unsized": _unsized,
    "64 ranks": many_ranks,
    "hostile": hostile_run,
}
CASES = {name: cache(make) for name, make in _CASES.items()}
"""Each run is made, and analyzed, once."""


def drawn() -> Drawing:
    """A drawing with a mark of every kind."""
    marks: tuple[Box | Dot | Line | Label, ...] = (
        Box(0, 5, 0, 20, "#B42814", "a tip", ("a text that is too long for its box by far" * 9, "short"), "#FFFFFF"),
        Dot(1, 10, "#0072B2", "dot", hollow=True),
        *(Dot(2, 10, "#0072B2", shape=shape) for shape in ("square", "triangle", "diamond")),
        Line(((0, 0), (5, 20)), "#111827", "5 4"),
        Label(5, 10, "beside"),
        Label(5, 10, "before", side="left", bold=True),
    )
    y = Axis(0, 20, ((10, "row"),), "rows", strong=frozenset({10.0}))
    legend = (Entry("#B42814", "red"), Entry("#0072B2", "dot", "circle"))
    return Drawing("title", "subtitle", linear_axis(0, 6, ""), y, 20, marks, legend)
