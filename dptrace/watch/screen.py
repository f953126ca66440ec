"""A screen about a job that runs, and lines for where there is no terminal."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from dptrace.core.units import duration, milliseconds, plural, sanitize, wrapped
from dptrace.watch.digest import Floats
from dptrace.watch.follow import Follower
from dptrace.watch.records import STAGES
from dptrace.watch.verdict import suspect_line

_INDENT = 8
"""Columns before the second line of what is wrapped: the words at the left, such as ``memory``, have as many."""
_BARS = "▁▂▃▄▅▆▇█"
_MOST_RANKS = 8
"""Rows of the table; of more ranks the latest are shown."""
_LINES_AT_ONCE = 200
"""Of what rank 0 printed since the last drawing: the rest would have scrolled past unread."""


def screen(follower: Follower, total: int = 0, width: int = 80) -> list[str]:
    """Return the lines of a screen, wrapped at a width.

    Args:
        total: the steps of the training, 0 if unknown.
    """
    totals, content = follower.totals, follower.summary()
    if not totals.steps:
        return [f"dptrace watch  {follower.folder.name}   waiting for the first steps"]
    step, files = content["step_ns"], follower.merger.files.values()
    ranks = f"{plural(content['world_size'], 'rank')} ({plural(content['hosts'], 'machine')})"
    seconds = time.time() - min(file.unix_ns for file in files) / 1e9
    head = f"dptrace watch  {follower.folder.name}   step {totals.last_step:,}{_ahead(totals.last_step, step, total)}"
    worst = f"worst {duration(step['worst'])} at step {step['worst_step']:,}"
    lines = [
        f"{head}   {ranks}   {_per_second(content, step)}   {duration(seconds * 1e9)}",
        f"step  median {duration(step['median'])}   p95 {duration(step['p95'])}   {worst}",
        f"      {sparkline(totals.length_course.means(), max(8, min(64, width - 32)))}",
        *_table(follower, width),
    ]
    lines += [suspect_line(row, step["mean"]) for row in content["suspects"][:2]]
    if content["cannot_tell"]:
        lines.append(f"late    unknown, because {content['cannot_tell']}")
    if memory := content["memory"]:
        lines.append(
            f"memory  at most {memory['largest'] / 2**20:,.0f} MiB, grown by {memory['grown'] / 2**20:,.0f} MiB"
        )
    lines += [capture["sentence"] for capture in content["captures"][-2:]]
    lines += [f"lost    rank {rank} ended after step {last:,}" for rank, last in follower.lost_ranks().items()]
    return [part for line in lines for part in wrapped(sanitize(line), width, _INDENT).split("\n")]


def _ahead(step: int, length: dict[str, int], total: int) -> str:
    if not total:
        return ""
    left = max(0, total - step - 1) * length["mean"]
    return f" of {total:,}, {duration(left)} left"


def _per_second(content: dict[str, object], step: dict[str, int]) -> str:
    for kind in ("tokens", "samples"):
        if value := content.get(f"{kind}_per_s"):
            return f"{value:,.0f} {kind}/s"
    return f"{1e9 / max(1, step['mean']):.1f} steps/s"


def sparkline(values: Floats, width: int = 48) -> str:
    """Return values as a line of bars, the least at the bottom; of several in a column the largest."""
    if not len(values):
        return ""
    parts = [float(part.max()) for part in np.array_split(values, min(width, len(values)))]
    least, most = min(parts), max(parts)
    places = [int((part - least) / (most - least) * 7.99) if most > least else 0 for part in parts]
    return "".join(_BARS[place] for place in places) + f"  {duration(least)} to {duration(most)}"


def _table(follower: Follower, width: int) -> list[str]:
    """Return the last steps of each rank in ms, the latest ranks first where there are many."""
    recent = list(follower.recent)[-4:]
    if not recent:
        return []
    own, waiting = (
        np.concatenate([getattr(batch, name) for batch in recent], 1).mean(1) for name in ("own", "waiting")
    )
    waited = waiting.sum(1)
    late = np.zeros(len(own))
    known = all(batch.late is not None for batch in recent)
    if known:
        late = np.concatenate([batch.late for batch in recent if batch.late is not None], 1).mean(1).sum(1)
    rows = [["ms", *STAGES, "waiting", "late"]]
    order = sorted(range(len(own)), key=lambda place: -late[place])[:_MOST_RANKS]
    for place in sorted(order) if len(own) <= _MOST_RANKS else order:
        times = [*map(milliseconds, own[place]), milliseconds(waited[place])]
        rows.append([f"rank {recent[-1].ranks[place]}", *times, milliseconds(float(late[place])) if known else "?"])
    if len(own) > _MOST_RANKS:
        middle = (float(np.median(times)) for times in (*own.T, waited))
        rows.append(["median", *map(milliseconds, middle), ""])
    name, *sizes = (max(map(len, column)) for column in zip(*rows, strict=True))
    gap = max(1, min(3, (width - name - sum(sizes)) // len(sizes)))
    return [
        head.ljust(name) + "".join(cell.rjust(size + gap) for cell, size in zip(cells, sizes, strict=True))
        for head, *cells in rows
    ]


class LiveScreen:
    """Redraws a screen on a terminal; what rank 0 prints scrolls above it."""

    def __init__(self, follower: Follower, output: Path | None = None, total: int = 0) -> None:
        self._follower, self._output, self._total = follower, output, total
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._file = -1
        self._rest = ""

    def __enter__(self) -> LiveScreen:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show_output()
        self._live.__exit__(kind, error, trace)
        if self._file >= 0:
            os.close(self._file)

    def update(self) -> None:
        """Draw it again."""
        self._show_output()
        self._live.update(Text("\n".join(screen(self._follower, self._total, self._console.width))), refresh=True)

    def say(self, text: str) -> None:
        """Print a line above it."""
        self._console.print(Text(sanitize(text)))

    def _show_output(self) -> None:
        """Print what rank 0 has printed since."""
        if self._file < 0 and self._output is not None:
            with suppress(OSError):
                self._file = os.open(self._output, os.O_RDONLY | os.O_CLOEXEC)
        if self._file < 0:
            return
        while text := os.read(self._file, 1 << 16).decode(errors="replace"):
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines[-_LINES_AT_ONCE:]:
                self._console.print(Text.from_ansi(line.rstrip("\r")))
