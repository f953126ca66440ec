"""An explanation in the terminal: its steps one after the other, its chart of time, and its cost."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from dptrace.core.units import plural
from dptrace.simulate.explanation import Cell, Explanation, Message, State, Step, Work, letter, megabytes

# The chart of time in the terminal: a row for each rank and lane, a column for each unit of time.


_IDLE, _ON = "·", "─"
_NARROW = 2
"""Columns of the terminal for one unit of time, at least."""


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
    cell = max(_NARROW, math.ceil(longest) + 1)
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


# The cost of an explanation as terms and texts, for terminal and page.


def cost_rows(explanation: Explanation) -> list[tuple[str, str]]:
    """Return volume and time, the formula with its numbers, and further figures."""
    cost = explanation.cost
    rows = [("Size", f"n = {megabytes(cost.size_bytes)}, {cost.counted}")]
    rows += [("Sent", by_rank(cost.sent_bytes)), ("Received", by_rank(cost.received_bytes))]
    rows += [("Link", link) for link in cost.links]
    rows += [("Time", cost.formula)]
    rows += [("", f"= {cost.numbers}")] if cost.numbers else []
    return rows + [("Note", sentence) for sentence in cost.sentences]


def by_rank(sizes: Sequence[float]) -> str:
    """Write one size for all ranks, or one for each group of neighbors that share it.

    >>> by_rank([3e6, 3e6]), by_rank([6e6, 2e6, 2e6])
    ('3 MB by each rank', '6 MB by rank 0, 2 MB by ranks 1 to 2')
    """
    if len(set(sizes)) == 1:
        return f"{megabytes(sizes[0])} by each rank"
    parts, first = [], 0
    for size, group in groupby(sizes):
        last = first + len(list(group)) - 1
        parts.append(f"{megabytes(size)} by {f'rank {first}' if first == last else f'ranks {first} to {last}'}")
        first = last + 1
    return ", ".join(parts)


MAX_WIDTH = 120
"""Text wider than this is hard to read."""
_INDENT = "  "
_GAP = 2
"""Columns between two ranks."""
_SHORT = 12
"""Columns of a label that does not fit."""
_FEW = 8
"""Numbers of a message that are written out."""


def lines(explanation: Explanation, width: int, step: int | None = None) -> Iterator[str]:
    """Return an explanation as lines of at most *width* columns.

    Args:
        step: the number of the only step to show.
    """
    width = min(width, MAX_WIDTH)
    if step is not None:
        yield from _step(explanation, explanation.steps[step - 1], width)
        return
    yield f"{explanation.title}, {explanation.ranks} ranks"
    yield from textwrap.wrap(explanation.about, width)
    yield ""
    if explanation.unit:
        yield from chart_lines(explanation, width)
    if explanation.columns:
        yield from textwrap.wrap(_legend(explanation), width)
        yield ""
        yield "At the start"
        yield from _table(explanation, explanation.steps[0].before, None, width)
        for one in explanation.steps:
            yield ""
            yield from _step(explanation, one, width)
    yield ""
    yield from _cost(explanation, width)


def _legend(explanation: Explanation) -> str:
    if explanation.unit:
        return "* marks what changed in a step."
    last, start = explanation.ranks - 1, explanation.steps[0].before[0][0]
    numbers = f", here {start.values[0]:g}" if start.values else ""
    return (
        f"The letters A to {letter(last)} stand for the data of ranks 0 to {last}: A0 is chunk 0 of rank 0{numbers}. "
        "* marks what arrived in a step. Where the labels do not fit, a number says how many ranks' data a sum has."
    )


def _step(explanation: Explanation, step: Step, width: int) -> Iterator[str]:
    """Return one step: its messages, and what the ranks hold after it."""
    heading = f"Step {step.number} of {len(explanation.steps)} · {step.phase}: {step.title}"
    if step.start is not None:
        heading = f"Step {step.number} of {len(explanation.steps)} · t = {step.start:g} · {step.title}"
    yield from textwrap.wrap(heading, width, subsequent_indent=_INDENT)
    if step.text:
        yield from textwrap.wrap(step.text, width, initial_indent=_INDENT, subsequent_indent=_INDENT)
    for text in _messages(explanation, step):
        yield _cut(f"{_INDENT}{text}", width)
    if step.after and step.after != step.before:
        yield from _table(explanation, step.after, step.before, width)


def _messages(explanation: Explanation, step: Step) -> list[str]:
    """Return the messages in words, as one where all ranks send the same to their right neighbors."""
    one = step.messages[0] if step.messages else None
    if one is None or one.values or any(replace(m, source=0, target=1) != one for m in step.messages):
        return [_message(explanation, step, message) for message in step.messages]
    return [f"each rank → the next  {one.label} ({plural(one.count, 'message')}, {megabytes(one.bytes)} together)"]


def _message(explanation: Explanation, step: Step, message: Message) -> str:
    """Return a message in words: who sends what to whom, and what becomes of it there."""
    ends = f"{message.source} → {message.target}"
    size = megabytes(message.bytes)
    if not message.values or not step.after:
        return f"{ends}  {message.label} ({size})"
    name = explanation.columns[message.column]
    if message.columns > 1:
        last = explanation.columns[message.column + message.columns - 1].rpartition(" ")[2]
        names = f"chunks {name.rpartition(' ')[2]} to {last}"
        verb = "added" if message.adds else "kept"
        return f"{ends}  {names} ({size}), {verb}: {_numbers(message.values)}"
    before = step.before[message.target][message.into]
    after = step.after[message.target][message.into]
    what = f"{message.label} = {_numbers(message.values)}"
    if not message.adds:
        return f"{ends}  {name} ({size}): {what}"
    return f"{ends}  {name} ({size}): {what}, added to {_numbers(before.values)} → {_numbers(after.values)}"


def _numbers(values: Sequence[float]) -> str:
    shown = " ".join(f"{value:.4g}" for value in values[:_FEW])
    return f"{shown} …" if len(values) > _FEW else shown


def _table(explanation: Explanation, after: State, before: State | None, width: int) -> Iterator[str]:
    """Return what each rank holds, one row per rank, in labels as long as the width allows."""
    for style in ("full", "counted", "short"):
        cells = [
            [
                _label(cell, explanation.ranks, style) + ("*" if cell != old else "")
                for cell, old in zip(*rows, strict=True)
            ]
            for rows in zip(after, before or after, strict=True)
        ]
        heads = list(explanation.columns) if style == "full" else _short_names(explanation.columns)
        gap = 1 if style == "short" else _GAP
        table = [["", *heads], *([name, *row] for name, row in zip(explanation.rows, cells, strict=True))]
        sizes = [max(map(len, column)) for column in zip(*table, strict=True)]
        if sum(sizes) + gap * (len(sizes) - 1) + len(_INDENT) <= width:
            break
    for row in table:
        text = (" " * gap).join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True))
        yield _cut(f"{_INDENT}{text}".rstrip(), width)


def _short_names(names: Sequence[str]) -> list[str]:
    """Return short names: only the numbers of columns that differ in nothing else, arrows for "to" and "from"."""
    if {"to 0", "from 0"} <= set(names):
        return [name.replace("to ", "→").replace("from ", "←") for name in names]
    numbered = len({name.rpartition(" ")[0] for name in names}) == 1
    return [name.rpartition(" ")[2] if numbered else name for name in names]


def _label(cell: Cell, ranks: int, style: str) -> str:
    """Return the label of a cell, or how many ranks' data a sum has where the names do not fit."""
    if style != "full" and cell.parts > 1:
        return f"{cell.parts} of {ranks}" if style == "counted" else str(cell.parts)
    label = cell.label or "·"
    return f"{label[: _SHORT - 1]}…" if style == "short" and len(label) > _SHORT else label


def _cost(explanation: Explanation, width: int) -> Iterator[str]:
    """Return volume and time, the formula with its numbers, and what was checked."""
    yield "Cost"
    rows = cost_rows(explanation)
    margin = max(len(term) for term, _ in rows) + 2 * len(_INDENT)
    for term, text in [*rows, ("Check", explanation.checked)]:
        start = f"{_INDENT}{term}".ljust(margin)
        yield from textwrap.wrap(text, width, initial_indent=start, subsequent_indent=" " * margin)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
