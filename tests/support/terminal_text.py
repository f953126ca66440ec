"""What the terminal's picture looks like as lines, and runs to draw."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console

from dptrace.analysis.per_gpu.split import Part
from dptrace.run.run import Run
from dptrace.timeline.model import Phase, Timeline
from dptrace.viewers.terminal.gantt import print_gantt, print_pair
from tests.support.builders import TimelineBuilder

GLYPHS = {
    Part.FORWARD: "F",
    Part.BACKWARD: "B",
    Part.OPTIMIZER: "O",
    Part.OTHER: "C",
    Part.EXPOSED_COMM: "X",
    Part.EXPOSED_MEMORY: "M",
    Part.IDLE: "·",
}


def captured(show: Callable[[Console], object], width: int = 100) -> str:
    """Return what a function prints on a terminal without colors."""
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        show(console)
    return capture.get()


def drawn(run: Run, width: int = 80, **options: object) -> list[str]:
    """Give the lines that a pipe gets."""
    file = io.StringIO()
    print_gantt(run, Console(file=file, width=width, **options))  # type: ignore[arg-type]
    return file.getvalue().splitlines()


def run_of(*timelines: Timeline) -> Run:
    return Run("runs/made", timelines)


def training(rank: int, steps: int, origin: int = 0) -> Timeline:
    build = TimelineBuilder(rank, bounds=tuple(origin + 1000 * k for k in range(steps + 1)))
    for t in range(origin, origin + 1000 * steps, 1000):
        build.compute(t, t + 300).compute(t + 300, t + 700, Phase.BACKWARD).all_reduce(t + 500, t + 850)
    return build.build()


def paired(a: Run, b: Run, width: int = 100, by_step: bool = True, **options: object) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, **options)  # type: ignore[arg-type]
    print_pair(a, b, console, by_step)
    return file.getvalue().splitlines()
