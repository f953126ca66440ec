"""The page of a comparison: one step of each run as a Gantt chart on one time axis, A over B, and the tables below.

Both begin at zero; the picture is that of ``dptrace view A --against B``::

    from dptrace.viewers.pages import comparison
    page = comparison.document(compare(dptrace.open("runs/naive"), dptrace.open("runs/interleaved")))
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dptrace.analysis.kernels.names import short_names
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.analysis.per_gpu.split import Part
from dptrace.comparison.changes import FIGURE_NAMES, Change, CollectiveChange, KernelChange
from dptrace.comparison.compare import Comparison
from dptrace.comparison.sides import RunSample, StoredRun
from dptrace.comparison.step_alignment import align_steps, run_steps
from dptrace.core.units import byte_size, milliseconds, sanitize
from dptrace.core.units import signed_milliseconds as signed
from dptrace.errors import DptraceError
from dptrace.viewers.base import theme
from dptrace.viewers.base.headline import Headline
from dptrace.viewers.base.page import Markup, environment, section_page, static
from dptrace.viewers.gantt.page.pair import picture
from dptrace.viewers.terminal.comparison import (
    change_cells,
    count,
    kind_changes_shown,
    median_cells,
    overlap_cells,
    row_verdict,
    shown_changes,
    side_lines,
    sort_name,
    texts_below,
    verdict_word,
    worst_verdict,
)

MAX_ROWS = 25
"""Most rows of kernels and of collectives on the page."""

_NAME_WIDTH = 90
"""Characters of a kernel's name."""

_COLORS = {
    "forward_ns": theme.PART_COLORS[Part.FORWARD],
    "backward_ns": theme.PART_COLORS[Part.BACKWARD],
    "optimizer_ns": theme.PART_COLORS[Part.OPTIMIZER],
    "other_ns": theme.PART_COLORS[Part.OTHER],
    "exposed_comm_ns": theme.EXPOSED,
    "exposed_memory_ns": theme.MEMORY,
    "idle_ns": theme.IDLE,
    "overlapped_comm_ns": theme.OVERLAPPED,
}


def document(found: Comparison, steps: tuple[int, int] | None = None) -> str:
    """Draw a comparison as one HTML page.

    Args:
        steps: numbers of A's and of B's step to draw; without, the ones of median length.

    Raises:
        DptraceError: a step is not there, or there is more than a page can hold.
    """
    sides = found.a, found.b
    if any(isinstance(one.run, StoredRun) for one in sides):
        if steps is not None:
            raise DptraceError(f"{found.a.run.path}: a baseline has no intervals to draw; leave --html-steps out.")
        about = "A baseline keeps figures and no intervals, so that no Gantt chart is drawn."
        head = Headline("A and B compared", "", (), (about, *texts_below(found)))
        return section_page(head, _above(found) + _below(found))
    wanted = [_step(one, None if steps is None else steps[i]) for i, one in enumerate(sides)]
    if steps is None and found.kinds:
        wanted[1] = _counterpart(found, wanted[0])
    a, b = (run_steps(one.run, {step}, one.devices) for one, step in zip(sides, wanted, strict=True))
    aligned = align_steps(a, b, comparison=found)
    above = Markup("\n").join([_above(found), _which(found, wanted, "" if steps else " They are of median length.")])
    return picture((aligned,), (*aligned.notes, *_drawn(found), *texts_below(found)), above, _below(found))


def _which(found: Comparison, drawn: Sequence[str], why: str) -> Markup:
    """Say which of several steps are drawn, and that the runs' figures are others; empty where all are."""
    if max(len(one.steps) + len(one.left_out) for one in (found.a, found.b)) == 1:
        return Markup("")
    a, b = map(sanitize, drawn)
    return Markup('<p class="runs">{}</p>').format(
        f"Drawn, with the figures above the chart, is one step of each: A's {a} and B's {b}.{why} "
        "The tables and the sentence above are of all steps."
    )


def _drawn(found: Comparison) -> list[str]:
    """Return which recordings are drawn, where a side has several."""
    if not found.several:
        return []
    numbers = [
        next(k for k, one in enumerate(samples, 1) if one is shown)
        for samples, shown in ((found.before, found.a), (found.after, found.b))
    ]
    return [f"Drawn are A{numbers[0]} and B{numbers[1]}, the recordings whose steps are of median length."]


def _counterpart(found: Comparison, step: str) -> str:
    """Return the step of B that does the same as a step of A, and has the same rank by length."""
    a, b = found.a, found.b
    signature = a.signatures[a.steps.index(step)]
    like_a, like_b = ([k for k, other in enumerate(one.signatures) if other == signature] for one in (a, b))
    if not like_b:
        return _step(b, None)
    rank = int((a.wall[like_a] < a.wall[a.steps.index(step)]).sum()) / max(len(like_a) - 1, 1)
    order = np.argsort(b.wall[like_b], kind="stable")
    return b.steps[like_b[int(order[round(rank * (len(like_b) - 1))])]]


def _step(one: RunSample, number: int | None) -> str:
    """Return the step whose length is closest to the median, or the one with that number."""
    if number is None:
        return one.steps[int(np.abs(one.wall - np.median(one.wall)).argmin())]
    names = [
        name for name in (*one.steps, *(name for name, _ in one.left_out)) if re.search(rf"(?<!\d){number}$", name)
    ]
    if not names:
        there = f"{one.steps[0]} to {one.steps[-1]}" if len(one.steps) > 1 else one.steps[0]
        raise DptraceError(f"{one.run.path}: no step that is compared has the number {number}. There are: {there}.")
    return names[0]


def _above(found: Comparison) -> Markup:
    lines = [Markup('<p class="runs"><b>{}</b> {}</p>').format(name, line) for name, line in side_lines(found)]
    differs = Markup("").join(Markup("<li>{}</li>").format(text) for text in found.differences)
    listed = Markup('<ul class="differs">{}</ul>').format(differs) if differs else Markup("")
    answer = Markup('<p class="answer">{}</p>').format(found.summary())
    styles = Markup("<style>{}</style>\n").format(Markup(static("base", "compare.css")))
    return Markup("\n").join([styles, *lines, listed, answer, Markup("")])


def _below(found: Comparison) -> Markup:
    tables = [
        _figure_table(found),
        *_kind_tables(found),
        _median_table(found),
        _collective_table(found),
        _kernel_table(found),
    ]
    template = environment().get_template("pages/compare.html")
    return Markup(template.render(tables=[table for table in tables if table["rows"]]))


def _table(title: str, note: str, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"title": title, "note": note, "columns": columns, "rows": rows}


def _row(name: str, cells: Sequence[str], style: str = "", color: str = "", title: str = "") -> dict[str, Any]:
    row: dict[str, Any] = {"name": sanitize(name), "cells": list(cells), "style": style, "title": sanitize(title)}
    return row | {"color": color, "dark": theme.dark_color(color)}


def _moved(verdict: str) -> str:
    return {"beyond noise": "moved", "same": "quiet", "within noise": "quiet"}.get(verdict, "")


_COLUMNS = ("A", "B", "B − A", "± 95 %", "%", "finds", "verdict")


def _figure_table(found: Comparison) -> dict[str, Any]:
    totals = ("wall_ns", "overlapped_comm_ns")
    rows = [
        _change_row(change, "cause " if change.name in CAUSES else "total " if change.name in totals else " ")
        for change in shown_changes(found)
    ]
    for name, share in (("overlap", found.overlap), ("MFU", found.mfu)):
        if share is not None:
            points = "–" if share.detectable is None else f"{share.detectable:.1f}"
            shown = *overlap_cells(share), points, verdict_word(share.verdict)
            rows.append(_row(name, shown, _moved(share.verdict)))
    note = (
        "ms, mean of steps and ranks: the parts add up to the wall. “± 95 %” is the interval of the difference; "
        "a change as large as “finds” is found in 4 of 5 such comparisons"
    )
    return _table("Where a step's time goes", note, _COLUMNS, rows)


def _change_row(change: Change, place: str = "") -> dict[str, Any]:
    """Return the row of a figure: A, B, their difference, and what could be found."""
    detectable = "–" if change.detectable is None else milliseconds(change.detectable)
    cells = *change_cells(change), detectable, verdict_word(change.verdict)
    return _row(FIGURE_NAMES[change.name], cells, place + _moved(change.verdict), _COLORS.get(change.name, ""))


def _kind_tables(found: Comparison) -> list[dict[str, Any]]:
    """Return a table for each kind of step, where there are several."""
    note = "ms, mean of {} steps of A and {} of B, and of the ranks"
    return [
        _table(
            f"Steps of kind “{sanitize(kind.kind)}”",
            note.format(kind.a_steps, kind.b_steps),
            _COLUMNS,
            [_change_row(change) for change in kind_changes_shown(kind)],
        )
        for kind in found.kinds
    ]


def _median_table(found: Comparison) -> dict[str, Any]:
    columns = ("A median", "± steps", "± ranks", "B median", "± steps", "± ranks")
    rows = [
        _row(FIGURE_NAMES[change.name], median_cells(change), "cause" if change.name in CAUSES else "")
        for change in shown_changes(found)
    ]
    return _table("Medians and spread", "ms, with the standard deviation over steps and over ranks", columns, rows)


def _most(rows: Sequence[CollectiveChange] | Sequence[KernelChange]) -> str:
    return f", the {MAX_ROWS} of {len(rows):,} that changed most" if len(rows) > MAX_ROWS else ""


def _collective_table(found: Comparison) -> dict[str, Any]:
    rows = []
    for row in found.collective_changes[:MAX_ROWS]:
        shown = (
            *(byte_size(row.collective.bytes), count(row.a_count, row.b_count)),
            *(milliseconds(row.duration.a), milliseconds(row.duration.b)),
            *(milliseconds(row.exposed.a), milliseconds(row.exposed.b), signed(row.exposed.delta)),
            signed(row.overlapped.delta),
            *_wait_and_transfer(row),
            row_verdict(row),
        )
        rows.append(_row(sort_name(row), shown, _moved(worst_verdict(row))))
    columns = ("bytes", "count", "A", "B", "exposed A", "exposed B", "B − A", "overlapped B − A", *_MATCHED, "verdict")
    return _table("Collectives", f"ms per rank and step{_most(found.collective_changes)}", columns, rows)


_MATCHED = ("wait B − A", "transfer A", "transfer B", "B − A")


def _wait_and_transfer(row: CollectiveChange) -> tuple[str, str, str, str]:
    wait, transfer = row.wait, row.transfer
    if wait is None or transfer is None:
        return "–", "–", "–", "–"
    return signed(wait.delta), milliseconds(transfer.a), milliseconds(transfer.b), signed(transfer.delta)


def _cut(name: str) -> str:
    """Leave the middle of a kernel's short name out where it is too long."""
    text, half = sanitize(name), _NAME_WIDTH // 2
    return text if len(text) <= 2 * half + 1 else f"{text[:half]}…{text[-half - 1 :]}"


def _kernel_table(found: Comparison) -> dict[str, Any]:
    rows, names = [], short_names(row.time.name for row in found.kernel_changes)
    for row in found.kernel_changes[:MAX_ROWS]:
        cells = count(row.a_count, row.b_count), milliseconds(row.time.a), milliseconds(row.time.b)
        name = _cut(names[row.time.name])
        shown = (*cells, signed(row.time.delta), row_verdict(row))
        rows.append(_row(name, shown, _moved(row.time.verdict), title=row.time.name))
    note = f"ms per rank and step{_most(found.kernel_changes)}"
    return _table("Kernels", note, ("count", "A", "B", "B − A", "verdict"), rows)
