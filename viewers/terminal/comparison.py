"""Two runs compared, as tables that fit a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from rich.console import Console, Group, RenderableType
from rich.text import Text

from dptrace.analysis.kernels.names import short_names
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.comparison.changes import FIGURE_NAMES, PARTS, Change, CollectiveChange, KernelChange, KindChanges
from dptrace.comparison.compare import Comparison, shared_notes
from dptrace.comparison.sides import DeviceId, RunSample
from dptrace.core.units import MINUS, byte_size, milliseconds, plural, signed_milliseconds
from dptrace.run.columns import SHOWN_FIGURES
from dptrace.run.shared_clock import clocks_fact
from dptrace.viewers.base.fitting import Fitting
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.table import column_table, number_table, plain
from dptrace.viewers.terminal.split import folded

ROWS = (*PARTS, *CAUSES, "wall_ns", "overlapped_comm_ns")
"""The figures in the order of the tables: the parts, the causes of idle time, their sum, overlapped communication."""

_HEADS = ("A", "B", "B − A", "± 95 %", "%", "verdict")
_LEAVING = ("%", "± 95 %")

MAX_ROWS = 5

Row = TypeVar("Row", KernelChange, CollectiveChange)


def percent(change: Change) -> str:
    """Return a difference in percent of A, with its sign."""
    share = change.delta_percent
    if share is None:
        return "new"
    text = f"{share:+,.0f}" if abs(share) >= 1000 else f"{share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)


def verdict_word(verdict: str) -> str:
    """Return a verdict in a word or two."""
    return {"same": "=", "within noise": "in noise", "beyond noise": "moved", "cannot tell": "can't tell"}[verdict]


def side_lines(comparison: Comparison) -> list[tuple[str, str]]:
    """Return for each recording its letter, and its name, how it was recorded, and how many steps are compared."""
    lines = []
    for letter, samples in (("A", comparison.before), ("B", comparison.after)):
        for number, sample in enumerate(samples, 1):
            lines.append((f"{letter}{number}" if comparison.several else letter, _side_line(sample)))
    return lines


def _side_line(sample: RunSample) -> str:
    head = headline(sample.run)
    clocks = filter(None, [clocks_fact(sample.run)])
    return " · ".join((head.title, *head.facts[:-1], plural(len(sample.steps), "step"), *clocks))


def sort_name(row: CollectiveChange) -> str:
    """Return the kind and the group of a collective."""
    return f"{row.collective.kind} · {row.collective.group}" if row.collective.group else row.collective.kind


def row_verdict(row: KernelChange | CollectiveChange) -> str:
    """Return a row's verdict; a row that only one run has needs no test against noise."""
    if not row.a_count or not row.b_count:
        return f"only in {'A' if row.a_count else 'B'}"
    if isinstance(row, KernelChange):
        return verdict_word(row.time.verdict)
    parts = ("exp.", row.exposed), ("overl.", row.overlapped), ("transf.", row.transfer), ("wait", row.wait)
    moved = [name for name, change in parts if change is not None and change.beyond]
    return f"{moved[0]} moved" if len(moved) == 1 else verdict_word(worst_verdict(row))


def _style(verdict: str) -> str:
    return {"beyond noise": "bold", "cannot tell": "yellow"}.get(verdict, "dim")


def _label(name: str) -> str:
    return f"  {FIGURE_NAMES[name]}" if name in CAUSES else FIGURE_NAMES[name]


def shown_changes(comparison: Comparison) -> list[Change]:
    """Return the changes of known figures that at least one run has, then those of waiting and transfer.

    Without all waiting where none of it is hidden: the exposed one says the same.
    """
    known = {change.name: change for change in comparison.changes}
    changes = [*(known[name] for name in ROWS if name in known), *comparison.wait_and_transfer]
    exposed = [(change.a, change.b) for change in changes if change.name == "exposed_wait_ns"]
    hidden = (change.name != "wait_ns" or (change.a, change.b) not in exposed for change in changes)
    return [change for change, adds in zip(changes, hidden, strict=True) if adds and (change.a or change.b)]


def change_cells(change: Change) -> tuple[str, str, str, str, str]:
    """Return A, B, their difference, the half width of its 95 % interval, and the difference in percent."""
    values = milliseconds(change.a), milliseconds(change.b), signed_milliseconds(change.delta)
    return *values, "–" if change.half_width is None else milliseconds(change.half_width), percent(change)


def _figures(comparison: Comparison) -> Fitting:
    table = number_table("ms per step, mean of steps and ranks", [""], _HEADS, _LEAVING)
    for change in shown_changes(comparison):
        style = "bold" if change.beyond else _style(change.verdict) if change.verdict == "cannot tell" else ""
        table.add_row(_label(change.name), *change_cells(change), verdict_word(change.verdict), style=style)
    for name, share in (("MFU", comparison.mfu), ("overlap", comparison.overlap)):
        if share is not None:
            style = "bold" if share.beyond else ""
            table.add_row(name, *overlap_cells(share), verdict_word(share.verdict), style=style)
    table.caption = "=: less than a thousandth of a step. moved: more than noise. can't tell: it may be noise."
    return table


def median_cells(change: Change) -> list[str]:
    """Return of A and of B the median, and the standard deviations over steps and over ranks."""
    values = [getattr(change, f"{x}_{word}") for x in "ab" for word in ("median", "step_spread", "rank_spread")]
    return ["–" if value is None else milliseconds(value) for value in values]


def overlap_cells(overlap: Change) -> tuple[str, str, str, str, str]:
    """Return A's and B's share of overlapped communication, and the difference in percentage points."""
    half = "–" if overlap.half_width is None else f"{overlap.half_width:.1f}"
    return f"{overlap.a:.1f} %", f"{overlap.b:.1f} %", f"{overlap.delta:+.1f}".replace("-", MINUS), half, ""


def kind_changes_shown(kind: KindChanges) -> list[Change]:
    """Return the figures of a kind of step to show: the wall time, communication, and what moved."""
    always = ("wall_ns", "exposed_comm_ns", "overlapped_comm_ns")
    known = {change.name: change for change in kind.changes}
    shown = [known[name] for name in ROWS if name in known and (name in always or known[name].beyond)]
    return [change for change in shown if change.a or change.b]


def _kinds(comparison: Comparison) -> Iterator[RenderableType]:
    for kind in comparison.kinds:
        steps = f"{plural(kind.a_steps, 'step')} in A, {kind.b_steps} in B"
        table = number_table(plain(f"{kind.kind}: {steps}, ms per step"), [""], _HEADS, _LEAVING)
        for change in kind_changes_shown(kind):
            style = "bold" if change.beyond else _style(change.verdict)
            table.add_row(FIGURE_NAMES[change.name], *change_cells(change), verdict_word(change.verdict), style=style)
        yield table
        yield ""


def _medians(comparison: Comparison) -> Fitting:
    heads = ("A\nmedian", "±\nsteps", "±\nranks", "B\nmedian", "±\nsteps", "±\nranks")
    table = number_table("medians in ms, and standard deviations over steps and over ranks", [""], heads)
    for change in shown_changes(comparison):
        table.add_row(_label(change.name), *median_cells(change))
    return table


def _ranks(by_rank: Sequence[tuple[DeviceId, tuple[Change, ...]]]) -> Fitting:
    compared = {change.name for change in by_rank[0][1]}
    names = [name for name in SHOWN_FIGURES if name in compared]
    table = number_table("B − A of each rank, ms per step (bold: moved)", ["rank"], map(folded, names))
    for (rank, gpu), changes in by_rank:
        known = {change.name: change for change in changes}
        cells = (Text(signed_milliseconds(known[name].delta), "bold" if known[name].beyond else "") for name in names)
        table.add_row(f"{rank} ({gpu})" if gpu else str(rank), *cells)
    return table


def _top(rows: Sequence[Row], verdicts: Sequence[str], all_rows: bool) -> tuple[Sequence[Row], str]:
    """Return the rows to show, and a line with the number of the others."""
    moved = [row for row, verdict in zip(rows, verdicts, strict=True) if verdict != "same"]
    shown = rows if all_rows else moved[:MAX_ROWS]
    left = len(rows) - len(shown)
    return shown, f"{left:,} more; --all shows them." if left else ""


def count(a: float, b: float) -> str:
    """Return how often something happens in A and in B."""
    return f"{a:.4g}" if a == b else f"{a:.4g} → {b:.4g}"


def _delta(change: Change | None) -> str:
    return "–" if change is None else signed_milliseconds(change.delta)


def _collectives(comparison: Comparison, all_rows: bool) -> Iterator[RenderableType]:
    rows = comparison.collective_changes
    shown, more = _top(rows, [worst_verdict(row) for row in rows], all_rows)
    if not shown:
        return
    columns: dict[str, Callable[[Any], str | Text]] = {
        "kind": lambda row: plain(sort_name(row)),
        "bytes": lambda row: byte_size(row.collective.bytes),
        "count": lambda row: count(row.a_count, row.b_count),
        "exposed\nB − A": lambda row: _delta(row.exposed),
        "overl.\nB − A": lambda row: _delta(row.overlapped),
        "wait\nB − A": lambda row: _delta(row.wait),
        "transf.\nB − A": lambda row: _delta(row.transfer),
        "verdict": row_verdict,
    }
    title = "collectives, per rank and step, ms"
    leaving = ("count", "transf. B − A", "wait B − A", "overl. B − A")
    yield column_table(title, columns, shown, style=lambda row: _style(worst_verdict(row)), leaving=leaving)
    yield Text(more, style="dim")


def worst_verdict(row: CollectiveChange) -> str:
    """Return the verdict on a row of collectives: the strongest of those on its times."""
    order = ("beyond noise", "cannot tell", "within noise", "same")
    changes = (row.exposed, row.overlapped, row.transfer, row.wait)
    return min((change.verdict for change in changes if change is not None), key=order.index)


def _kernels(comparison: Comparison, all_rows: bool) -> Iterator[RenderableType]:
    rows = comparison.kernel_changes
    shown, more = _top(rows, [row.time.verdict for row in rows], all_rows)
    if not shown:
        return
    what = "operators" if comparison.a.run.on_cpu and comparison.b.run.on_cpu else "kernels"
    names = short_names(row.time.name for row in rows)
    columns: dict[str, Callable[[Any], str | Text]] = {
        "name": lambda row: plain(names[row.time.name]),
        "count": lambda row: count(row.a_count, row.b_count),
        "A": lambda row: milliseconds(row.time.a),
        "B": lambda row: milliseconds(row.time.b),
        "B − A": lambda row: _delta(row.time),
        "verdict": row_verdict,
    }
    title = f"{what}, per rank and step, ms"
    yield column_table(title, columns, shown, style=lambda row: _style(row.time.verdict), leaving=("count",))
    yield Text(more, style="dim")


def texts_below(comparison: Comparison) -> list[str]:
    """Return the notes that limit the figures: of each recording, and of the comparison."""
    before, after = ([sample.run.notes for sample in side] for side in (comparison.before, comparison.after))
    return [*shared_notes(before, after), *comparison.notes]


def print_comparison(comparison: Comparison, console: Console, all_rows: bool = False, per_rank: bool = False) -> None:
    """Print the two runs, differences in how they were recorded, the summary, the tables and the notes.

    Args:
        all_rows: leave no collective and no kernel out.
        per_rank: add a row for each rank that both runs have.
    """
    parts: list[RenderableType] = [
        *(Text(f"{name}  ", style="bold").append_text(plain(line)) for name, line in side_lines(comparison)),
        *(Text("≠ ", style="yellow").append_text(plain(text)) for text in comparison.differences),
        Text(comparison.summary(), style="bold"),
        "",
        _figures(comparison),
        "",
        *_kinds(comparison),
        _medians(comparison),
        "",
    ]
    if per_rank:
        parts += [_ranks(comparison.by_rank) if comparison.by_rank else "No rank is in both runs.", ""]
    for part in (*_collectives(comparison, all_rows), *_kernels(comparison, all_rows)):
        parts += [part] if not isinstance(part, Text) else [part, ""] if part.plain else [""]
    parts.append(Group(*(Text("! ", style="yellow").append_text(plain(text)) for text in texts_below(comparison))))
    console.print(*parts, sep="\n")
