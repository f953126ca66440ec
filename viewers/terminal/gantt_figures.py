"""The figures below the terminal's picture: the split by rank, causes of idling, kinds of communication, savings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.table import Table
from rich.text import Text

from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.analysis.per_gpu.split import FIGURES, Split, by_kind, overlap_percent
from dptrace.comparison.step_alignment import AlignedSteps
from dptrace.core.units import duration
from dptrace.run.run import Run
from dptrace.viewers.base.time_saved import time_saved_text
from dptrace.viewers.terminal.pen import Pen
from dptrace.viewers.terminal.split_tables import quantity, step_label

__all__ = ["MIN_TABLE_WIDTH", "causes", "kinds", "saved_by_step", "shares", "split_figures"]

MIN_TABLE_WIDTH = 80
MAX_PAIRS = 12


def shares(split: Split) -> dict[str, str]:
    """Write the nine figures: shares of the wall time, and that time."""
    total = split.total()
    wall = total["wall_ns"]
    cells = {name: f"{100 * total[name] / wall:.1f}%" if wall else "-" for name in FIGURES}
    return cells | {"wall_ns": _four_digits(wall)}


def split_figures(rows: Mapping[str, Mapping[str, str]], pen: Pen, width: int) -> Iterator[str | Text | Table]:
    """List the figures by rank: a table, or sentences where a table would be cut."""
    if width < MIN_TABLE_WIDTH:
        for label, cells in rows.items():
            words = (f"{name.removesuffix('_ns').replace('_', ' ')} {value}" for name, value in cells.items())
            yield Text(pen.encodable(f"{label}: {', '.join(words)}"))
        return
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="")
    table.add_column("share\nof wall", no_wrap=True)
    for name in FIGURES:
        heading = name.removesuffix("_ns").replace("overlapped_comm", "over-_lapped").replace("_", "\n")
        table.add_column(heading, justify="right", no_wrap=True)
    for label, cells in rows.items():
        table.add_row(label, *map(pen.encodable, cells.values()))
    yield ""
    yield table


def causes(run: Run, pen: Pen, whose: str = "") -> Iterator[Text]:
    """Say why the GPUs were idle: the mean of their steps; nothing where none was."""
    devices = [device for device in run.devices if len(device.timeline.windows)]
    means = [device.mean_idle() for device in devices]
    idle = {cause: sum(one[cause] for one in means) / len(means) for cause in CAUSES} if means else {}
    if not any(idle.values()):
        return
    words = ", ".join(
        f"{cause.removesuffix('_ns').replace('_', ' ').replace('host bound', 'host-bound')} {duration(ns)}"
        for cause, ns in idle.items()
        if ns
    )
    yield _line(f"{whose}Idle {duration(sum(idle.values()))} a step: {words}", pen)


def kinds(run: Run, pen: Pen, whose: str = "") -> Iterator[Text]:
    """Say what of each kind of collective a GPU did in a step, on average."""
    for kind in by_kind(run.splits):
        if not kind.count:
            continue  # launched outside the steps
        percent = overlap_percent(round(kind.overlapped_ns), round(kind.exposed_ns))
        size = f", {quantity(kind.bytes)}" if kind.bytes else ""
        hidden = "" if percent is None else f" ({percent:.1f} %)"
        yield _line(
            f"{whose}{pen.text(kind.kind)}: {kind.count:.4g} a step{size}, {_some(kind.exposed_ns)} exposed, "
            f"{_some(kind.overlapped_ns)} overlapped{hidden}",
            pen,
        )


def saved_by_step(aligned: AlignedSteps, pen: Pen, width: int) -> Iterator[Table | Text]:
    """Put each pair of steps beside each other, with what is saved: a table, or sentences where it would be cut."""

    def saved_text(a: int, b: int) -> str:
        return "–" if aligned.incomparable else time_saved_text(a - b, (a - b) / max(a, 1))

    lengths = zip(aligned.a.length_ns.tolist(), aligned.b.length_ns.tolist(), strict=True)
    rows = [
        (step_label(name), duration(a), step_label(other), duration(b), saved_text(a, b))
        for name, other, (a, b) in zip(aligned.a.names, aligned.b.names, lengths, strict=True)
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
            table.add_row(*map(pen.text, row))
        yield table
    if more:
        yield _line(more, pen)


def _some(ns: float) -> str:
    return duration(ns) if ns >= 1 else "0"


def _line(text: str, pen: Pen) -> Text:
    return Text(pen.encodable(text))


def _four_digits(ns: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 1000)):
        if ns >= size:
            value = ns / size
            return f"{value:.{1 if value >= 99.995 else 2 if value >= 9.9995 else 3}f} {unit}"
    return f"{ns} ns"
