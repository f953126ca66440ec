"""The chart of time in the terminal: a row for each rank and lane, a column for each unit of time."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from msgspec.structs import replace

from dptrace.simulate.explanation import Explanation, Work

__all__ = ["chart_lines", "distinct"]

_IDLE, _ON = "·", "─"
_NARROW, _WIDE = 2, 4
"""Columns of the terminal for one unit of time."""


def chart_lines(explanation: Explanation, width: int) -> Iterator[str]:
    """Return the chart, in as many pieces below each other as the width needs."""
    work, each = distinct(explanation)
    lanes = sorted({(one.rank, one.lane) for one in work}, key=lambda lane: (lane[0], lane[1] != "compute"))
    several = len({lane for _, lane in lanes}) > 1
    names = [each or f"rank {rank}" for rank, _ in lanes]
    names = [f"{name} {lane}" for name, (_, lane) in zip(names, lanes, strict=True)] if several else names
    margin = max(map(len, names)) + 2
    units = math.ceil(max(one.end for one in work))
    longest = max(len(one.label) / (one.end - one.start) for one in work)
    cell = min(max(_NARROW, math.ceil(longest) + 1), _WIDE) if not several else max(_NARROW, math.ceil(longest) + 1)
    if cell * units > width - margin >= math.ceil(longest) * units:
        cell = math.ceil(longest)
    at_once = max(1, (width - margin) // cell)
    pieces = math.ceil(units / at_once)
    at_once = math.ceil(units / pieces)
    drawn = [_row([one for one in work if (one.rank, one.lane) == lane], units, cell) for lane in lanes]
    for first in range(0, units, at_once):
        last = min(first + at_once, units)
        yield " " * margin + _axis(first, last, cell)
        for name, row in zip(names, drawn, strict=True):
            yield (name.ljust(margin) + row[first * cell : last * cell]).rstrip()
        yield ""
    yield from textwrap.wrap(f"One unit of time is {explanation.unit}; {_IDLE} is idle time.", width)


def distinct(explanation: Explanation) -> tuple[list[Work], str]:
    """Return the work to draw: of one rank, with the name "each rank", where all ranks do the same."""
    work = list(explanation.work)
    mine = [[replace(one, rank=0) for one in work if one.rank == rank] for rank in range(explanation.ranks)]
    return (mine[0], "each rank") if all(other == mine[0] for other in mine) else (work, "")


def _row(work: list[Work], units: int, cell: int) -> str:
    """Draw the work of one lane: its label, then a line to its end."""
    row = list((_IDLE + " " * (cell - 1)) * units)
    for one in work:
        first, last = round(one.start * cell), round(one.end * cell)
        text = one.label[: last - first].ljust(last - first - 1, _ON) if last - first > cell else one.label
        row[first:last] = text[: last - first].ljust(last - first)
    return "".join(row)


def _axis(first: int, last: int, cell: int) -> str:
    """Number the units, every one or every fifth as there is room."""
    every = 1 if cell > len(str(last)) else 5
    return "".join(
        (str(unit) if unit % every == 0 else "").ljust(cell)[: cell if every == 1 else None]
        for unit in range(first, last)
    ).rstrip()
