"""Two runs side by side as tables that fit a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.comparison.changes import PARTS, Change, CollectiveChange, KernelChange
from dptrace.comparison.compare import FIGURE_NAMES, Comparison
from dptrace.comparison.samples import DeviceId, RunSample
from dptrace.core.text import sanitize
from dptrace.viewers.base.headline import headline
from dptrace.viewers.terminal.split_tables import HEADINGS, milliseconds, plain, quantity

__all__ = [
    "ROWS",
    "count",
    "overlap_cells",
    "percent",
    "print_comparison",
    "row_verdict",
    "short_kernel",
    "shown_changes",
    "side_line",
    "signed",
    "sort_name",
    "texts_below",
    "verdict_word",
    "worst_verdict",
]

ROWS = (*PARTS, *CAUSES, "wall_ns", "overlapped_comm_ns")
"""The figures in the order of the tables: the parts, what idling was for, their sum, and what lies under compute."""

MAX_ROWS = 5
_NARROWEST_NAME = 12

Row = TypeVar("Row", KernelChange, CollectiveChange)


def signed(ns: float) -> str:
    """Give a difference in ms, with its sign.

    >>> signed(14_100_000), signed(-250_000), signed(0)
    ('+14.10', '−0.25', '0.00')
    """
    text = milliseconds(abs(ns))
    return text if not float(text.replace(",", "")) else f"{'+' if ns > 0 else '−'}{text}"


def percent(change: Change) -> str:
    """Give a difference in percent of A, with its sign."""
    share = change.delta_percent
    if share is None:
        return "new"
    text = f"{share:+,.0f}" if abs(share) >= 1000 else f"{share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def verdict_word(verdict: str) -> str:
    """Shorten a verdict for a column of its own."""
    return {"same": "=", "within noise": "in noise", "beyond noise": "moved", "cannot tell": "can't tell"}[verdict]


def side_line(one: RunSample) -> str:
    """Name a run and tell how it was recorded; its steps are those that are compared."""
    head = headline(one.run)
    steps = f"{len(one.steps)} step{'' if len(one.steps) == 1 else 's'}"
    return " · ".join((head.title, *head.facts[:-1], steps))


def sort_name(row: CollectiveChange) -> str:
    """Name the kind and the group of a collective."""
    return f"{row.collective.kind} · {row.collective.group}" if row.collective.group else row.collective.kind


def short_kernel(name: str, width: int) -> str:
    """Shorten a kernel's name: its parameters go first, then its middle, for template arguments tell variants apart.

    >>> short_kernel("at::native::gemm<float, 128>(int, float const*)", 60)
    'gemm<float, 128>'
    >>> short_kernel("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", 25)
    'ampere_bf16_…tages_32x5_tn'
    """
    text = sanitize(name)
    if text.endswith(")") and len(text) > width:
        depth = 0
        for place in range(len(text) - 1, 0, -1):
            depth += (text[place] == ")") - (text[place] == "(")
            if not depth:
                text = text[:place]
                break
    text = text.replace("at::native::", "")
    half = max(width, _NARROWEST_NAME) // 2
    return text if len(text) <= 2 * half + 1 else f"{text[:half]}…{text[-half - 1 :]}"


def row_verdict(row: KernelChange | CollectiveChange) -> str:
    """Give what a table says of a row: that only one run has it is a fact, whatever the noise."""
    if not row.a_count or not row.b_count:
        return f"only in {'A' if row.a_count else 'B'}"
    if isinstance(row, KernelChange):
        return verdict_word(row.time.verdict)
    moved = [name for name, change in (("exp.", row.exposed), ("overl.", row.overlapped)) if change.beyond]
    return f"{moved[0]} moved" if len(moved) == 1 else verdict_word(worst_verdict(row))


def _style(verdict: str) -> str:
    return {"beyond noise": "bold", "cannot tell": "yellow"}.get(verdict, "dim")


def _table(title: str, first: str, *headings: str) -> Table:
    table = Table(
        title=Text(title, style="bold"), title_justify="left", title_style="", box=None, pad_edge=False, padding=(0, 1)
    )
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _label(name: str) -> str:
    return f"  {FIGURE_NAMES[name]}" if name in CAUSES else FIGURE_NAMES[name]


def shown_changes(found: Comparison) -> list[Change]:
    """Leave out what neither run has."""
    return [change for change in map(found.change, ROWS) if change.a or change.b]


def _figures(found: Comparison) -> Table:
    table = _table("ms per step, mean of steps and ranks: the parts add up", "", "A", "B", "B − A", "%", "verdict")
    for change in shown_changes(found):
        style = "bold" if change.beyond else _style(change.verdict) if change.verdict == "cannot tell" else ""
        if change.name in ("wall_ns", "overlapped_comm_ns"):
            table.add_section()
        cells = milliseconds(change.a), milliseconds(change.b), signed(change.delta), percent(change)
        table.add_row(_label(change.name), *cells, verdict_word(change.verdict), style=style)
    if (overlap := found.overlap) is not None:
        table.add_row(
            "overlap", *overlap_cells(overlap), verdict_word(overlap.verdict), style="bold" if overlap.beyond else ""
        )
    return table


def overlap_cells(overlap: Change) -> tuple[str, str, str, str]:
    """Give A's and B's share of communication under compute, and the difference in percentage points."""
    return f"{overlap.a:.1f} %", f"{overlap.b:.1f} %", f"{overlap.delta:+.1f}".replace("-", "−"), ""


def _medians(found: Comparison) -> Table:
    heads = ("A\nmedian", "±\nsteps", "±\nranks", "B\nmedian", "±\nsteps", "±\nranks")
    table = _table("medians in ms, and standard deviation over steps and over ranks", "", *heads)
    for change in shown_changes(found):
        row = []
        for side in "ab":
            values = (getattr(change, f"{side}_{word}") for word in ("median", "step_spread", "rank_spread"))
            row += ["–" if value is None else milliseconds(value) for value in values]
        table.add_row(_label(change.name), *row)
    return table


def _ranks(by_rank: Sequence[tuple[DeviceId, tuple[Change, ...]]]) -> Table:
    table = _table("B − A of each rank, ms per step (bold: moved)", "rank", *HEADINGS.values())
    for (rank, gpu), changes in by_rank:
        known = {change.name: change for change in changes}
        cells = (Text(signed(known[name].delta), "bold" if known[name].beyond else "") for name in HEADINGS)
        table.add_row(f"{rank} ({gpu})" if gpu else str(rank), *cells)
    return table


def _top(rows: Sequence[Row], verdicts: Sequence[str], every: bool) -> tuple[Sequence[Row], str]:
    """Choose the rows that are shown, and say how many are not."""
    moved = [row for row, verdict in zip(rows, verdicts, strict=True) if verdict != "same"]
    shown = rows if every else moved[:MAX_ROWS]
    left = len(rows) - len(shown)
    return shown, f"{left:,} more; --all shows them." if left else ""


def count(a: float, b: float) -> str:
    """Tell how often something was and is done."""
    return f"{a:.4g}" if a == b else f"{a:.4g} → {b:.4g}"


def _collectives(found: Comparison, every: bool) -> Iterator[RenderableType]:
    rows = found.collective_changes
    shown, more = _top(rows, [worst_verdict(row) for row in rows], every)
    if not shown:
        return
    heads = ("bytes", "count", "exposed A", "B", "B − A", "overl.\nB − A", "verdict")
    table = _table("collectives, per rank and step, ms", "kind", *heads)
    for row in shown:
        exposed = milliseconds(row.exposed.a), milliseconds(row.exposed.b), signed(row.exposed.delta)
        cells = quantity(row.collective.bytes), count(row.a_count, row.b_count), *exposed, signed(row.overlapped.delta)
        table.add_row(plain(sort_name(row)), *cells, row_verdict(row), style=_style(worst_verdict(row)))
    yield table
    yield Text(more, style="dim")


def worst_verdict(row: CollectiveChange) -> str:
    """Give the verdict on a row of collectives: the stronger of those on exposed and overlapped time."""
    order = ("beyond noise", "cannot tell", "within noise", "same")
    return min((row.exposed.verdict, row.overlapped.verdict), key=order.index)


def _kernels(found: Comparison, width: int, every: bool) -> Iterator[RenderableType]:
    rows = found.kernel_changes
    shown, more = _top(rows, [row.time.verdict for row in rows], every)
    if not shown:
        return
    table = _table("kernels, per rank and step, ms", "name", "count", "A", "B", "B − A", "verdict")
    for row in shown:
        cells = (
            count(row.a_count, row.b_count),
            milliseconds(row.time.a),
            milliseconds(row.time.b),
            signed(row.time.delta),
        )
        name = Text(short_kernel(row.time.name, max(width - 50, _NARROWEST_NAME)))
        table.add_row(name, *cells, row_verdict(row), style=_style(row.time.verdict))
    yield table
    yield Text(more, style="dim")


def texts_below(found: Comparison) -> list[str]:
    """Give what must be known to believe the figures: of A, of B, and of the comparison."""
    run_notes = [*(f"A: {note}" for note in found.a.run.notes), *(f"B: {note}" for note in found.b.run.notes)]
    return [*run_notes, *found.notes]


def print_comparison(found: Comparison, console: Console, every: bool = False, per_rank: bool = False) -> None:
    """Print what was compared, what differed to begin with, the sentence, the tables and the notes.

    Args:
        every: leave no collective and no kernel out.
        per_rank: add a row for each rank that both runs have.
    """
    parts: list[RenderableType] = [
        Text("A  ", style="bold").append_text(plain(side_line(found.a))),
        Text("B  ", style="bold").append_text(plain(side_line(found.b))),
        *(Text("≠ ", style="yellow").append_text(plain(text)) for text in found.differences),
        Text(found.summary(), style="bold"),
        "",
        _figures(found),
        "",
        _medians(found),
        "",
    ]
    if per_rank:
        parts += [_ranks(found.by_rank) if found.by_rank else "No rank is in both runs.", ""]
    for part in (*_collectives(found, every), *_kernels(found, console.width, every)):
        parts += [part] if not isinstance(part, Text) else [part, ""] if part.plain else [""]
    parts.append(Group(*(Text("! ", style="yellow").append_text(plain(text)) for text in texts_below(found))))
    console.print(*parts, sep="\n")
