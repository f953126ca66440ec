"""The figures below the terminal's picture: the split by rank, causes of idle time, kinds of communication, savings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.table import Table
from rich.text import Text

from dptrace.analysis.cross_rank.transfers import ExposedWait
from dptrace.analysis.per_gpu.split import CAUSES, FIGURES, Split, by_kind, overlap_percent
from dptrace.comparison.step_alignment import AlignedSteps
from dptrace.core.units import byte_size, duration
from dptrace.run.run import Run
from dptrace.viewers.base.format import step_label
from dptrace.viewers.base.time_saved import time_saved_text
from dptrace.viewers.terminal.gantt.cell_style import Pen

__all__ = ["MIN_TABLE_WIDTH", "causes", "kinds", "saved_by_step", "shares", "split_figures"]

MIN_TABLE_WIDTH = 80
MAX_PAIRS = 12


_COLUMNS = (*FIGURES[:5], "exposed_wait_ns", *FIGURES[5:])
"""The nine figures, with waiting after the exposed communication that it is a part of."""


def shares(split: Split, wait: ExposedWait) -> dict[str, str]:
    """Return the figures as text: shares of the wall time, and the wall time itself; no wait where none is known."""
    total: dict[str, int | None] = {**split.total(), **wait.total()}
    wall = total["wall_ns"] or 0
    cells = {name: f"{100 * ns / wall:.1f}%" if wall else "-" for name in _COLUMNS if (ns := total[name]) is not None}
    return cells | {"wall_ns": duration(wall)}


def split_figures(rows: Mapping[str, Mapping[str, str]], pen: Pen, width: int) -> Iterator[str | Text | Table]:
    """Yield the figures by rank: a table, or sentences where a table would not fit."""
    if width < MIN_TABLE_WIDTH:
        for label, cells in rows.items():
            figures = (f"{name.removesuffix('_ns').replace('_', ' ')} {value}" for name, value in cells.items())
            yield Text(pen.encodable(f"{label}: {', '.join(figures)}"))
        return
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="")
    table.add_column("share\nof wall", no_wrap=True)
    shown = [name for name in _COLUMNS if any(name in cells for cells in rows.values())]
    for name in shown:
        table.add_column(_heading(name), justify="right", no_wrap=True)
    for label, cells in rows.items():
        table.add_row(label, *(pen.encodable(cells.get(name, "?")) for name in shown))
    yield ""
    yield table


def _heading(name: str) -> str:
    short = {"overlapped_comm_ns": "over-_lapped", "exposed_wait_ns": "of it_wait", "optimizer_ns": "opti-_mizer"}
    return short.get(name, name.removesuffix("_ns")).replace("_", "\n")


def causes(run: Run, pen: Pen, whose: str = "") -> Iterator[Text]:
    """Yield why the GPUs were idle, the mean of their steps; nothing where no GPU was."""
    devices = [device for device in run.devices if len(device.timeline.windows)]
    means = [device.mean_idle() for device in devices]
    idle = {cause: sum(mean[cause] for mean in means) / len(means) for cause in CAUSES} if means else {}
    if not any(idle.values()):
        return
    listed = ", ".join(
        f"{cause.removesuffix('_ns').replace('_', ' ').replace('host bound', 'host-bound')} {duration(ns)}"
        for cause, ns in idle.items()
        if ns
    )
    yield _line(f"{whose}Idle {duration(sum(idle.values()))} per step: {listed}", pen)


def kinds(run: Run, pen: Pen, whose: str = "") -> Iterator[Text]:
    """Yield the collectives of each kind, as the average of a GPU and step."""
    waits = run.cross_rank.mean_waits_by_kind()
    for kind in by_kind(run.splits):
        if not kind.count:
            continue  # launched outside the steps
        wait = waits[kind.kind]["exposed_wait_ns"]
        waited = "" if wait is None else f" ({_some(wait) if wait else 'none'} of it waiting)"
        percent = overlap_percent(round(kind.overlapped_ns), round(kind.exposed_ns))
        size = f", {byte_size(kind.bytes)}" if kind.bytes else ""
        hidden = "" if percent is None else f" ({percent:.1f} %)"
        yield _line(
            f"{whose}{pen.text(kind.kind)}: {kind.count:.4g} per step{size}, {_some(kind.exposed_ns)} exposed{waited}, "
            f"{_some(kind.overlapped_ns)} overlapped{hidden}",
            pen,
        )


def saved_by_step(aligned: AlignedSteps, pen: Pen, width: int) -> Iterator[Table | Text]:
    """Yield each pair of steps with the time saved: a table, or sentences where it would not fit."""

    def saved_text(pair: int, a: int, b: int) -> str:
        certain = aligned.certain(a - b, pair)
        return "–" if aligned.incomparable else time_saved_text(a - b, (a - b) / max(a, 1), certain)

    lengths = zip(aligned.a.length_ns.tolist(), aligned.b.length_ns.tolist(), strict=True)
    rows = [
        (step_label(name), duration(a), step_label(other), duration(b), saved_text(pair, a, b))
        for pair, (name, other, (a, b)) in enumerate(zip(aligned.a.names, aligned.b.names, lengths, strict=True))
    ]
    if len(rows) < 2:
        return
    more = f"{len(rows) - MAX_PAIRS} more pairs of steps" if len(rows) > MAX_PAIRS else ""
    if width < MIN_TABLE_WIDTH:
        yield from (
            _line(f"A step {a} {took}, B step {b} {other}: {saved}", pen)
            for a, took, b, other, saved in rows[:MAX_PAIRS]
        )
    else:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="")
        for heading in ("step of A", "A", "step of B", "B", "B against A"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows[:MAX_PAIRS]:
            table.add_row(*(Text(pen.text(cell)) for cell in row))
        yield table
    if more:
        yield _line(more, pen)


def _some(ns: float) -> str:
    return duration(ns) if ns >= 1 else "0"


def _line(text: str, pen: Pen) -> Text:
    return Text(pen.encodable(text))
