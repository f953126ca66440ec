"""A table of texts, for the terminal and for pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from typing import Any

from rich.console import Console
from rich.text import Text

from dptrace.analysis.cross_rank.transfers import WAIT_FIGURES
from dptrace.analysis.findings.finding import MIN_SHARE, NOTABLY_MORE, Finding, is_part, top_findings
from dptrace.analysis.per_gpu.split import KindFigures
from dptrace.core.units import byte_size, duration, milliseconds, sanitize, share
from dptrace.run.columns import HEADINGS
from dptrace.run.run import Run
from dptrace.timeline.model import Timeline
from dptrace.viewers.base.fitting import Fitting

# Names of ranks and steps, and what findings would gain, as every table and picture writes them.


def plain(text: str) -> Text:
    r"""Return a text from a trace without markup and what a terminal would obey; it stays on its line.

    >>> plain("red\nline").plain
    'red\\nline'
    """
    return Text(sanitize(text).replace("\n", r"\n").replace("\t", r"\t"))


def shapes_text(row: Mapping[str, Any]) -> str:
    """Return the shapes of an operator's inputs from its row in a table of kernels: ``[8,512] [512,64]``."""
    return " ".join(str(sizes).replace(" ", "") for sizes in row["input_dims"] if sizes)


def step_label(name: str) -> str:
    """Shorten the profiler's step names to their number; return other names unchanged."""
    return name.removeprefix("ProfilerStep#")


GAIN_UNKNOWN = "gain unknown"
"""In place of a gain, where a replay can't tell."""


def figure_words(finding: Finding, known: bool = True) -> tuple[str, str]:
    """Return the figure that a finding is listed with, and its share of a step; a count does not pass for a gain.

    Args:
        known: whether the list says what a step gains; otherwise all of it is by what was counted.

    >>> figure_words(Finding("pipeline_bubble", "", "", 201_800_000, 0.92))
    ('gain unknown', '')
    >>> figure_words(Finding("pipeline_bubble", "", "", 201_800_000, 0.92), known=False)
    ('201.8 ms', '92 %')
    """
    if known and not finding.has_gain:
        return GAIN_UNKNOWN, ""
    ns, of_step = finding.figure
    return f"{milliseconds(ns)} ms", share(of_step)


def gains_known(findings: Iterable[Finding]) -> bool:
    """Return whether a list says what a step gains: of any finding, that is known."""
    return any(finding.has_gain for finding in findings)


def gain_sentence(finding: Finding) -> str:
    """Return what a step gains without a finding, with its range; or why that is not known.

    >>> from dptrace.analysis.findings.finding import Gain
    >>> gain = Gain("rank 2 level with the others", 978_800_000, 958_100_000, 996_100_000, 978_800_000, 0.5)
    >>> gain_sentence(Finding("straggler", "", "", 1_000_000_000, 0.5, gain=gain))
    'Gains 979 ms a step (958 ms to 996 ms): rank 2 level with the others.'
    """
    gain = finding.gain
    if gain.ns is None or gain.marginal_ns is None:
        return f"{duration(finding.counted_ns)} counted; {GAIN_UNKNOWN}: {gain.reason}"
    if gain.ns < 0:
        return f"Loses {duration(-gain.ns)} a step: {gain.change}."
    low, high = (duration(ns) if ns else "0" for ns in (gain.low_ns, gain.high_ns))
    known = gain.high_ns is not None
    between, at_most = (f" ({low} to {high})", f" (at most {high} a step)") if known else ("", "")
    text = f"{duration(gain.ns)} a step{between}" if gain.ns else f"nothing{at_most}"
    if duration(gain.marginal_ns) != duration(gain.ns):
        text = f"{duration(gain.marginal_ns) if gain.marginal_ns else 'nothing'} after those above, alone {text}"
    return f"Gains {text}: {gain.change}. {gain.reason}".rstrip()


def order_heading(findings: Iterable[Finding]) -> str:
    """Return the heading above findings that are shown with what a step gains, in one line of 80 characters."""
    if found := _unordered(findings):
        order = "a part before its whole" if found[2] else "some only after others"
        return f"Gain of a step in this order, {order} (below: range, or alone):"
    return "What a step gains if you mend in this order (below: range, or gain alone):"


def order_sentence(findings: Iterable[Finding]) -> str:
    """Return why a finding stands before one that is shown with more; empty where none does."""
    if (found := _unordered(findings)) is None:
        return ""
    less, more, of_whole = found
    if of_whole:
        return f"{less} stands before {more}: a part comes before its whole."
    return f"{more} stands after {less}: it gains that only once those above are gone."


def _unordered(findings: Iterable[Finding]) -> tuple[str, str, bool] | None:
    """Return the first figure that stands before a greater one, that one, and whether it is that of a whole."""
    gained = (one for one in top_findings(findings) if one.has_gain)
    shown = [one for one in gained if one.figure[1] >= MIN_SHARE]  # others are needed by the one above them
    for place, (one, after) in enumerate(pairwise(shown)):
        if after.figure[0] > NOTABLY_MORE * one.figure[0]:
            of_whole = any(is_part(part, after) for part in shown[: place + 1])
            return f"{milliseconds(one.figure[0])} ms", f"{milliseconds(after.figure[0])} ms", of_whole
    return None


def rank_label(run: Run, timeline: Timeline) -> str:
    """Return a GPU's rank, with its device index where the rank has several."""
    several = timeline.rank in run.ranks_of_several_gpus
    return f"{timeline.rank} GPU {timeline.device}" if several else str(timeline.rank)


def collective_columns(run: Run) -> dict[str, Callable[[KindFigures], str]]:
    """Return headings and cells of the table by kind of collective, for the terminal and for pages."""
    waits = run.cross_rank.mean_waits_by_kind()
    shown = [name for name in WAIT_FIGURES if any(one[name] for one in waits.values())]
    return {
        "kind": lambda kind: kind.kind,
        "count": lambda kind: f"{kind.count:.4g}",
        "bytes": lambda kind: byte_size(kind.bytes),
        "exposed ms": lambda kind: wait_cell(kind.exposed_ns),
        **{f"{HEADINGS[name].heading} ms": _wait_of_kind(waits, name) for name in shown},
        "overlapped ms": lambda kind: wait_cell(kind.overlapped_ns),
        "overlap": lambda kind: "–" if kind.overlap_percent is None else f"{kind.overlap_percent:.1f} %",
    }


def _wait_of_kind(waits: Mapping[str, Mapping[str, float | None]], name: str) -> Callable[[KindFigures], str]:
    return lambda kind: wait_cell(waits[kind.kind][name])


def wait_cell(ns: float | None) -> str:
    """Return milliseconds, or ? for what the run does not show."""
    return "?" if ns is None else milliseconds(ns)


def number_table(
    title: Text | str, words: Sequence[str], numbers: Iterable[str], leaving: Sequence[str] = ()
) -> Fitting:
    """Return a table without rows: columns of words, then of numbers.

    Args:
        leaving: headings of the columns that a narrow terminal goes without, the least important first.
    """
    return Fitting(
        title, (*((heading, True) for heading in words), *((heading, False) for heading in numbers)), leaving
    )


def column_table(
    title: Text | str,
    columns: Mapping[str, Callable[[Any], str | Text]],
    rows: Collection[Any],
    words: Container[str] = ("what", "kind", "name", "module"),
    style: Callable[[Any], str] = lambda row: "",
    leaving: Sequence[str] = (),
) -> Fitting:
    """Return a table of rows by its columns: the heading of each, and the function that returns a row's cell.

    Args:
        words: headings of the columns whose cells are words; the others hold numbers and are aligned right.
        style: returns the style of a row.
        leaving: as in :func:`number_table`.
    """
    table = Fitting(title, ((heading, heading in words) for heading in columns), leaving)
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()), style=style(row))
    return table


_SENTENCE = 24
"""Characters from which on a cell is a sentence."""
MAX_ROWS = 40
"""Most rows of a table in the terminal or in a report, without --all."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of texts, which may hold hostile names: the renderer must escape them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    """Number of columns, from the left, that hold words; the others hold numbers and are aligned right."""
    note: str = ""
    """What the numbers mean: which steps, which unit."""
    leaving: tuple[str, ...] = ()
    """Columns that a narrow terminal goes without, the least important first; then those from the right."""

    def truncated(self, count: int = MAX_ROWS) -> TextTable:
        """Return the first rows, with a note on how many more there are."""
        more = len(self.rows) - count
        if more <= 0:
            return self
        note = f"{self.note} {more:,} more rows are not shown.".strip()
        return replace(self, rows=self.rows[:count], note=note)


def fitting_table(cells: TextTable, title: Text | str = "", styles: Sequence[str] = ()) -> Fitting:
    """Return a table for the terminal, without its note.

    Args:
        styles: of each row; without, they have none.
    """
    # A sentence wraps, wherever its column is.
    longest = [max((len(row[i]) for row in cells.rows), default=0) for i in range(len(cells.columns))]
    words = (i < cells.text_columns or length > _SENTENCE for i, length in enumerate(longest))
    table = Fitting(title, zip(map(sanitize, cells.columns), words, strict=True), cells.leaving)
    for row, style in zip(cells.rows, styles or repeat(""), strict=False):
        table.add_row(*map(plain, row), style=style)
    return table


def print_text_table(cells: TextTable, title: str, console: Console) -> None:
    """Print a table, its title above and its note below it."""
    console.print(fitting_table(cells, title) if cells.rows else Text(title, style="bold"))
    if cells.note:
        console.print(plain(cells.note), style="dim")


def markdown_lines(cells: TextTable) -> list[str]:
    """Return a table as lines of Markdown, without its note."""
    numbers = len(cells.columns) - cells.text_columns
    rows = ("| " + " | ".join(map(escape_markdown, row)) + " |" for row in (cells.columns, *cells.rows))
    heading, *lines = rows
    return [heading, "|" + "--|" * cells.text_columns + "--:|" * numbers, *lines]


def markdown_page(title: str, above: Sequence[str], tables: Sequence[TextTable], notes: Sequence[str]) -> str:
    """Return tables as a page of Markdown: sentences above them, notes below."""
    blocks = [f"# {escape_markdown(title)}", *map(escape_markdown, above)]
    for cells in tables:
        blocks += ["\n".join(markdown_lines(cells)), *([escape_markdown(cells.note)] if cells.note else [])]
    if notes:
        blocks.append("\n".join(f"- {escape_markdown(note)}" for note in notes))
    return "\n\n".join(blocks) + "\n"


def escape_markdown(text: str) -> str:
    """Escape what has a meaning in Markdown or HTML: names and notes may come from other people's scripts."""
    escaped = re.sub(r"[\\|\[*`]", r"\\\g<0>", sanitize(text))
    return re.sub("<(?! )", "&lt;", escaped).replace("\n", " ")


# What the pieces of a critical path, and its step, are called.


PATH_KINDS = {
    "compute": "compute",
    "memory": "copies and sets",
    "transfer": "collectives, once the last rank has arrived",
    "host": "host: calls and pauses between them",
    "launch": "latency of launches",
    "stream": "gaps between kernels of a stream",
    "wait": "returns of waits",
    "absent_ranks": "waits in collectives that lack ranks",
    "unexplained": "unexplained",
}
"""By the names in :data:`dptrace.replay.paths.LINK_KINDS`."""


def step_words(name: str) -> str:
    """Return what a sentence calls a step.

    >>> step_words("ProfilerStep#4"), step_words("whole trace")
    ('step 4', 'the whole trace')
    """
    label = step_label(name)
    return f"step {label}" if label[-1:].isdigit() else f"the {label}"
