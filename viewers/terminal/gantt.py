"""The Gantt chart in a terminal, for SSH: a row of parts and a row of communication per rank, and the figures below.

One run, or two of them one over the other on one scale, step beside step, with what the second one saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console, RenderableType
from rich.text import Text

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.comparison.differences import drawn_differences
from dptrace.comparison.step_alignment import AlignedSteps, align_steps, run_steps
from dptrace.run.notable_ranks import NotableRank, notable_ranks
from dptrace.run.run import Run
from dptrace.timeline.model import Timeline
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.time_saved import notes_of_both, time_saved_sentence
from dptrace.viewers.terminal.gantt_figures import causes, kinds, saved_by_step, shares, split_figures
from dptrace.viewers.terminal.gantt_picture import MIN_CELLS_PER_STEP, Block, Scale, legend_lines, print_picture
from dptrace.viewers.terminal.gantt_rows import Row, paired_rows, row_of
from dptrace.viewers.terminal.pen import LEGEND, Look, Pen, pen_for, time_saved_look

__all__ = ["DEFAULT_WIDTH", "MAX_RANKS", "print_gantt", "print_pair"]

DEFAULT_WIDTH = 80
"""Of what goes to a pipe or a file."""
MAX_RANKS = 16
"""Ranks drawn where no screen says how many fit; more would push the first ones off it."""
LINES_BELOW = 16
"""About how many lines stand above and below the rows."""
MAX_REASONS = 4


def print_gantt(run: Run, console: Console) -> None:
    """Draw *run* as wide as the console: each cell shows the part that holds most of its time."""
    pen = pen_for(console)
    _print_title(run, pen, console)
    chosen, notable = _chosen(run, _most_ranks(console, 1))
    if not chosen:
        console.print("No steps to draw.")
    else:
        labels = _labels([device.timeline for device in chosen])
        origins, span, shared = _origins(chosen)
        first = chosen[0].timeline.windows
        block = Block(
            "steps",
            first.names,
            [int(bound) - origins[0] for bound in first.bounds[:-1]],
            int(first.bounds[-1]) - origins[0],
            labels,
            [row_of(device.timeline) for device in chosen],
            origins,
            any(len(device.timeline.collectives) for device in chosen),
        )
        scale = print_picture([block], span, pen, console)
        remarks = [*_remarks(run, chosen, notable), *_of_scale(scale, len(first), shared)]
        numbers = [*causes(run, pen), *kinds(run, pen)]
        rows = {label: shares(device.split) for label, device in zip(labels, chosen, strict=True)}
        _print_below(LEGEND, remarks, [*split_figures(rows, pen, console.width), *numbers], pen, console)
    _print_notes(run.notes, pen, console)


def print_pair(a: Run, b: Run, console: Console, by_step: bool = True) -> None:
    """Draw two runs as wide as the console, A over B on one axis, with what B saves.

    Args:
        by_step: let each pair of steps begin at one place; else only the first.

    Raises:
        DptraceError: one of the runs has no step.
    """
    pen, most = pen_for(console), _most_ranks(console, 2)
    aligned = align_steps(run_steps(a), run_steps(b), by_step)
    for letter, run in (("A", a), ("B", b)):
        _print_title(run, pen, console, f"{letter}  ")
    console.print(Text(pen.text(time_saved_sentence(aligned)), style=_verdict(aligned)), highlight=False)
    _print_notes(drawn_differences(a, b), pen, console)
    chosen = [_chosen(run, most) for run in (a, b)]
    rows = paired_rows(aligned)
    blocks = [_paired_block(aligned, which, own, rows[which]) for which, (own, _) in enumerate(chosen)]
    scale = print_picture(blocks, int(aligned.slots_ns[-1]), pen, console)
    remarks = [*aligned.notes, *_of_scale(scale, len(aligned.a.names), True)]
    numbers: list[RenderableType] = ["", *saved_by_step(aligned, pen, console.width)]
    figures: dict[str, dict[str, str]] = {}
    for letter, run, block, (own, notable) in zip("AB", (a, b), blocks, chosen, strict=True):
        remarks += [f"{letter}: {remark}" for remark in _remarks(run, own, notable)]
        most_steps = max(len(device.timeline.windows) for device in own)
        if most_steps > len(aligned.a.names):
            remarks.append(f"{letter}: its shares and its wall below are of all its {most_steps} steps.")
        numbers += [*causes(run, pen, f"{letter}  "), *kinds(run, pen, f"{letter}  ")]
        figures |= {label: shares(device.split) for label, device in zip(block.labels, own, strict=True)}
    verbs = sorted({gap.saved_ns > 0 for gap in aligned.time_saved()}, reverse=True)
    legend = (*LEGEND, *(time_saved_look("Saved by B" if saved else "Lost by B", saved) for saved in verbs))
    _print_below(legend, remarks, [*split_figures(figures, pen, console.width), *numbers], pen, console)
    _print_notes(notes_of_both(a, b), pen, console)


def _verdict(aligned: AlignedSteps) -> str:
    if aligned.incomparable:
        return ""
    saved = aligned.saved_ns()
    return "bold green" if saved > 0 else "bold red" if saved else "bold"


def _paired_block(aligned: AlignedSteps, which: int, chosen: Sequence[DeviceFigures], rows: Sequence[Row]) -> Block:
    one, place = aligned.runs[which], aligned.place_ns[which].tolist()
    row_by_device = {id(device): row for device, row in zip(one.devices, rows, strict=True)}
    timelines = [device.timeline for device in chosen]
    shown = [row_by_device[id(device)] for device in chosen]
    # The words on what is freed stand once, and so in the first row, whichever rank that is.
    shown[0] = replace(shown[0], time_saved=rows[0].time_saved)
    return Block(
        f"{'AB'[which]} steps",
        one.names,
        place,
        place[-1] + int(one.length_ns[-1]),
        [f"{'AB'[which]} {label}" for label in _labels(timelines)],
        [shown[0], *(replace(row, time_saved=()) for row in shown[1:])],
        [0] * len(shown),
        any(len(timeline.collectives) for timeline in timelines),
    )


def _most_ranks(console: Console, runs: int) -> int:
    """Give how many ranks of each run are drawn: those that fit on the screen, if there is one."""
    if not console.is_terminal:
        return MAX_RANKS // runs
    return max((console.height - LINES_BELOW) // (2 * runs), MAX_RANKS // runs)


def _chosen(run: Run, most: int) -> tuple[list[DeviceFigures], tuple[NotableRank, ...]]:
    """Choose the devices to draw, by rank; where there are more than fit, those that tell most, these first."""
    with_steps = [device for device in run.devices if len(device.timeline.windows)]
    notable = notable_ranks(run) if len(with_steps) > 2 else ()
    if len(with_steps) <= most:
        return with_steps, notable
    return [run.devices[one.index] for one in notable[:most]], notable


def _print_title(run: Run, pen: Pen, console: Console, before: str = "") -> None:
    head = headline(run)
    words = before + " · ".join((head.title, *head.facts))
    console.print(Text(pen.text(words), style="bold"), highlight=False)


def _print_below(
    legend: Sequence[Look], remarks: Sequence[str], numbers: Sequence[RenderableType], pen: Pen, console: Console
) -> None:
    texts = [Text(pen.text(remark)) for remark in remarks]
    console.print(*legend_lines(legend, pen, console.width), *texts, *numbers, sep="\n", highlight=False)


def _print_notes(notes: Sequence[str], pen: Pen, console: Console) -> None:
    for note in notes:
        console.print(Text(pen.text(f"! {note}")), highlight=False)


def _remarks(run: Run, chosen: Sequence[DeviceFigures], notable: Sequence[NotableRank]) -> Iterator[str]:
    """Say what the picture does not show, and where to look in it."""
    empty = [timeline for timeline in run.timelines if not len(timeline.windows)]
    if empty:
        yield f"Without a step, and so not drawn: {', '.join(_labels(empty))}."
    names = _labels(run.timelines)
    more = len(run.timelines) - len(empty) - len(chosen)
    reasons = [f"{names[one.index]} ({one.why})" for one in notable if one.why][:MAX_REASONS]
    if more or [one.why for one in notable if one.why] != ["typical"]:
        yield from [f"Look at: {', '.join(reasons)}."] if reasons else []
    if more:
        yield f"{more} more rank{'s' if more > 1 else ''} not drawn: choose which with --ranks, such as --ranks 8-15."


def _of_scale(scale: Scale, steps: int, shared: bool) -> Iterator[str]:
    """Say what the axis can't show."""
    if not shared:
        yield "Each rank is drawn from its own first step: the clocks lie too far apart for one axis."
    if steps * MIN_CELLS_PER_STEP > scale.cells:
        yield "Many steps for this width: a cell shows only what fills most of it. Choose some with --steps FIRST:LAST."


def _labels(timelines: Sequence[Timeline]) -> list[str]:
    ranks = [timeline.rank for timeline in timelines]
    several = {rank for rank in ranks if ranks.count(rank) > 1}
    return [f"rank {t.rank}" + (f" GPU {t.device}" if t.rank in several else "") for t in timelines]


def _origins(chosen: Sequence[DeviceFigures]) -> tuple[list[int], int, bool]:
    """Give each rank's origin, the axis' span, and whether all share it: unless each had but a sliver of it."""
    starts = [int(device.timeline.windows.bounds[0]) for device in chosen]
    ends = [int(device.timeline.windows.bounds[-1]) for device in chosen]
    first, span = min(starts), max(ends) - min(starts)
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    if span > 3 * longest:
        return starts, max(longest, 1), False
    return [first] * len(chosen), max(span, 1), True
