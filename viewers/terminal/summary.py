"""A run in the terminal: what it is, a sentence, its tables, and what must be known to believe them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dptrace.analysis.per_gpu.split import FIGURES, overlap_percent
from dptrace.run.run import Run
from dptrace.viewers.base.headline import headline
from dptrace.viewers.terminal.cross_rank_tables import findings_list, timing_table
from dptrace.viewers.terminal.run_facts import expert_lines, memory_sentence
from dptrace.viewers.terminal.split_tables import (
    MAX_RANKS,
    MAX_STEPS,
    collective_table,
    idle_table,
    milliseconds,
    plain,
    quantity,
    rank_label,
    step_label,
    step_tables,
)
from dptrace.viewers.views.pipeline import bubble_table

__all__ = ["notes", "print_collectives", "print_run", "sentence"]

MAX_COLLECTIVES = 60


def sentence(run: Run) -> Text:
    """Say in a sentence what the tables say: the step's length, and what of it is lost to communication and idling."""
    if not any(len(figures.names) for figures in run.splits):
        return Text("There is no step in this run.", style="bold")
    total = {name: sum(figures.total()[name] for figures in run.splits) for name in FIGURES}
    wall = max(total["wall_ns"], 1)
    step = np.median(np.concatenate([figures.figures["wall_ns"] for figures in run.splits]))
    text = Text(f"A step takes {milliseconds(float(step))} ms (median): ", style="bold")
    text.append(f"{100 * total['exposed_comm_ns'] / wall:.1f} % exposed communication", style="bold red")
    percent = overlap_percent(total["overlapped_comm_ns"], total["exposed_comm_ns"])
    hidden = "no communication" if percent is None else f"{percent:.1f} % of communication overlapped"
    text.append(f", {100 * total['idle_ns'] / wall:.1f} % idle; {hidden}.")
    if (again := run.recompute_percent()) is not None:
        text.append(f" Of backward, {again:.1f} % is forward computed again (checkpointed activations).")
    return text


def _description(run: Run) -> Text:
    """Name the run and tell how it was recorded."""
    head = headline(run)
    return plain(" · ".join((head.title, *head.facts)))


def notes(run: Run, further: tuple[str, ...] = ()) -> RenderableType:
    """Give what the user must know to believe the figures: what was missing, dropped or guessed."""
    return Group(*(Text("! ", style="yellow").append_text(plain(note)) for note in (*run.notes, *further)))


def print_run(run: Run, console: Console, every: bool = False, align: bool = True) -> None:
    """Print what *run* is, a sentence, the tables, what matters most, and the notes.

    Args:
        every: leave no row out, however many there are.
        align: whether clocks that are off are corrected before ranks are compared.
    """
    parts: list[RenderableType] = [_description(run), sentence(run), "", *_spaced(step_tables(run, every))]
    if not every and (len(run.splits) > MAX_RANKS or any(len(f.names) > MAX_STEPS for f in run.splits)):
        parts += [Text("--all shows every rank and every step.", style="dim"), ""]
    if (collectives := collective_table(run)) is not None:
        parts += [collectives, ""]
    if (causes := idle_table(run, every)) is not None:
        parts += [causes, ""]
    if (schedules := bubble_table(run)) is not None:
        parts += [schedules, ""]
    together = run.cross_rank if align else run.analyze_cross_rank(align=False)
    if (across := timing_table(together, every)) is not None:
        parts += [across, ""]
    if memory := memory_sentence(run.metadata):
        parts += [Text(memory), ""]
    if load := expert_lines(run.metadata, every):
        parts += [Text("\n".join(load)), ""]
    parts += [findings_list(together.findings), ""]
    if run.notes or together.notes:
        parts += [notes(run, together.notes)]
    console.print(*parts, sep="\n")


def _spaced(tables: Iterator[RenderableType]) -> Iterator[RenderableType]:
    for table in tables:
        yield table
        yield ""


def print_collectives(run: Run, console: Console, every: bool = False) -> None:
    """Print a row for each collective on each GPU; the first ones only, unless *every*."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for heading in ("rank", "step", "kind", "phase", "bytes", "start\nms", "ms", "exposed\nms", "overl.\nms"):
        table.add_column(heading, justify="left" if heading in ("step", "kind", "phase") else "right", no_wrap=True)
    rows = run.collectives()
    shown = rows if every else rows.head(MAX_COLLECTIVES)
    origin = min(int(timeline.windows.bounds[0]) for timeline in run.timelines)
    labels = {(timeline.rank, timeline.device): rank_label(run, timeline) for timeline in run.timelines}
    for row in shown.to_dict("records"):
        table.add_row(
            labels[row["rank"], row["device"]],
            plain(step_label(row["step"])) if isinstance(row["step"], str) else "–",
            row["kind"],
            row["phase"],
            quantity(row["bytes"]),
            f"{(row['start_ns'] - origin) / 1e6:,.3f}",
            *(f"{ns / 1e6:.3f}" for ns in (row["end_ns"] - row["start_ns"], row["exposed_ns"], row["overlapped_ns"])),
        )
    console.print(table if len(rows) else "No communication in this run.")
    if len(shown) < len(rows):
        console.print(f"{len(rows) - len(shown):,} more; --all shows them, --csv writes them.")
    if run.notes:
        console.print(notes(run))
