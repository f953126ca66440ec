"""The Gantt chart in a terminal: a row of parts and a row of communication per rank, and figures below.

It shows one run, or two on one time axis, aligned by step, with the time that the second one saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console, RenderableType
from rich.text import Text

from dptrace.analysis.cross_rank.transfers import ExposedWait
from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.comparison.compare import compare
from dptrace.comparison.sides import drawn_differences, incomparable
from dptrace.comparison.step_alignment import AlignedSteps, align_steps, run_steps
from dptrace.core.units import plural
from dptrace.run.notable_ranks import NotableRank, notable_ranks
from dptrace.run.run import Run
from dptrace.timeline.model import Timeline
from dptrace.viewers.base.headline import headline
from dptrace.viewers.base.time_saved import notes_of_both, time_saved_sentence
from dptrace.viewers.terminal.gantt.cell_style import EXPOSED, LEGEND, WAITS, Look, Pen, pen_for, time_saved_look
from dptrace.viewers.terminal.gantt.figures import causes, kinds, saved_by_step, shares, split_figures
from dptrace.viewers.terminal.gantt.picture import MIN_CELLS_PER_STEP, Block, Scale, legend_lines, print_picture
from dptrace.viewers.terminal.gantt.rows import Row, paired_rows, row_of

__all__ = ["DEFAULT_WIDTH", "MAX_RANKS", "print_gantt", "print_pair"]

DEFAULT_WIDTH = 80
"""Columns in a pipe or a file."""
MAX_RANKS = 16
"""Ranks drawn where the height of the terminal is unknown."""
LINES_BELOW = 16
"""Approximate number of lines above and below the rows."""
MAX_REASONS = 4


def print_gantt(run: Run, console: Console) -> None:
    """Draw *run* as wide as the console: each cell shows the part that takes most of its time."""
    pen = pen_for(console)
    _print_title(run, pen, console)
    chosen, notable = _chosen(run, _most_ranks(console, 1))
    if not chosen:
        console.print("No steps to draw.")
    else:
        labels = _labels([device.timeline for device in chosen])
        origins, span, shared = _origins(chosen)
        first, waits = chosen[0].timeline.windows, _waits(run)
        block = Block(
            "steps",
            first.names,
            [int(bound) - origins[0] for bound in first.bounds[:-1]],
            int(first.bounds[-1]) - origins[0],
            labels,
            [row_of(device.timeline, waits[id(device)]) for device in chosen],
            origins,
            any(len(device.timeline.collectives) for device in chosen),
        )
        scale = print_picture([block], span, pen, console)
        remarks = [*_remarks(run, chosen, notable), *_scale_remarks(scale, len(first), shared)]
        numbers = [*causes(run, pen), *kinds(run, pen)]
        rows = _shares(run, labels, chosen)
        _print_below(_legend(block.rows), remarks, [*split_figures(rows, pen, console.width), *numbers], pen, console)
    _print_notes(run.notes, pen, console)


def print_pair(a: Run, b: Run, console: Console, by_step: bool = True) -> None:
    """Draw two runs as wide as the console, A above B on one axis, with the time that B saves.

    Args:
        by_step: align each pair of steps; otherwise only the first.

    Raises:
        DptraceError: one of the runs has no step.
    """
    pen, most = pen_for(console), _most_ranks(console, 2)
    steps = run_steps(a), run_steps(b)
    comparison = None if incomparable(a, b) else compare(a, b, with_kernels=False)
    aligned = align_steps(*steps, by_step, comparison)
    for letter, run in (("A", a), ("B", b)):
        _print_title(run, pen, console, f"{letter}  ")
    if comparison is not None:
        console.print(Text(pen.text(comparison.summary()), style="bold"), highlight=False)
    console.print(Text(pen.text(time_saved_sentence(aligned)), style=_verdict_style(aligned)), highlight=False)
    _print_notes(drawn_differences(a, b), pen, console)
    chosen = [_chosen(run, most) for run in (a, b)]
    rows = paired_rows(aligned)
    blocks = [_paired_block(aligned, which, devices, rows[which]) for which, (devices, _) in enumerate(chosen)]
    scale = print_picture(blocks, int(aligned.slots_ns[-1]), pen, console)
    remarks = [*aligned.notes, *_scale_remarks(scale, len(aligned.a.names), True)]
    numbers: list[RenderableType] = ["", *saved_by_step(aligned, pen, console.width)]
    figures, shown_rows = dict[str, dict[str, str]](), list[Row]()
    for letter, run, block, (devices, notable) in zip("AB", (a, b), blocks, chosen, strict=True):
        remarks += [f"{letter}: {remark}" for remark in _remarks(run, devices, notable)]
        most_steps = max(len(device.timeline.windows) for device in devices)
        if most_steps > len(aligned.a.names):
            remarks.append(f"{letter}: the shares and the wall time below are of all {most_steps} steps.")
        numbers += [*causes(run, pen, f"{letter}  "), *kinds(run, pen, f"{letter}  ")]
        shown_rows += block.rows
        figures |= _shares(run, block.labels, devices)
    legend = (*_legend(shown_rows), *_time_saved_legend(aligned))
    _print_below(legend, remarks, [*split_figures(figures, pen, console.width), *numbers], pen, console)
    _print_notes(notes_of_both(a, b), pen, console)


def _shares(run: Run, labels: Sequence[str], chosen: Sequence[DeviceFigures]) -> dict[str, dict[str, str]]:
    """Return the figures of the chosen devices by label."""
    waits = _waits(run)
    return {label: shares(device.split, waits[id(device)]) for label, device in zip(labels, chosen, strict=True)}


def _waits(run: Run) -> dict[int, ExposedWait]:
    """Return the waits of each of the run's devices by its id()."""
    return {id(device): wait for device, wait in zip(run.devices, run.cross_rank.exposed_waits, strict=True)}


def _legend(rows: Sequence[Row]) -> tuple[Look, ...]:
    """Return the legend, with waiting after exposed communication where any rank waits."""
    after = LEGEND.index(EXPOSED) + 1
    waits = (WAITS,) if any(len(row.waiting[0]) for row in rows) else ()
    return (*LEGEND[:after], *waits, *LEGEND[after:])


def _time_saved_legend(aligned: AlignedSteps) -> list[Look]:
    """Return the looks of the gaps: saved or lost beyond noise, or shorter and longer steps that may be chance."""
    words = {(1, True): "Saved by B", (-1, True): "Lost by B", (1, False): "B shorter", (-1, False): "B longer"}
    gaps = {(1 if gap.saved_ns > 0 else -1, gap.certain) for gap in aligned.time_saved()}
    return [time_saved_look(words[gap], gap[0] > 0 if gap[1] else None) for gap in words if gap in gaps]


def _verdict_style(aligned: AlignedSteps) -> str:
    saved = aligned.saved_ns()
    if aligned.incomparable or not aligned.certain(saved):
        return ""
    return "bold green" if saved > 0 else "bold red" if saved else "bold"


def _paired_block(aligned: AlignedSteps, which: int, chosen: Sequence[DeviceFigures], rows: Sequence[Row]) -> Block:
    steps, place = aligned.runs[which], aligned.place_ns[which].tolist()
    row_by_device = {id(device): row for device, row in zip(steps.devices, rows, strict=True)}
    timelines = [device.timeline for device in chosen]
    shown = [row_by_device[id(device)] for device in chosen]
    # The time saved is labeled once: in the first row, whichever rank that is.
    shown[0] = replace(shown[0], time_saved=rows[0].time_saved)
    return Block(
        f"{'AB'[which]} steps",
        steps.names,
        place,
        place[-1] + int(steps.length_ns[-1]),
        [f"{'AB'[which]} {label}" for label in _labels(timelines)],
        [shown[0], *(replace(row, time_saved=()) for row in shown[1:])],
        [0] * len(shown),
        any(len(timeline.collectives) for timeline in timelines),
    )


def _most_ranks(console: Console, runs: int) -> int:
    """Return how many ranks of each run to draw: those that fit on the screen, if there is one."""
    if not console.is_terminal:
        return MAX_RANKS // runs
    return max((console.height - LINES_BELOW) // (2 * runs), MAX_RANKS // runs)


def _chosen(run: Run, most: int) -> tuple[list[DeviceFigures], tuple[NotableRank, ...]]:
    """Return the devices to draw, by rank; where not all fit, the most notable ones, most notable first."""
    with_steps = [device for device in run.devices if len(device.timeline.windows)]
    notable = notable_ranks(run) if len(with_steps) > 2 else ()
    if len(with_steps) <= most:
        return with_steps, notable
    return [run.devices[rank.index] for rank in notable[:most]], notable


def _print_title(run: Run, pen: Pen, console: Console, before: str = "") -> None:
    head = headline(run)
    title = before + " · ".join((head.title, *head.facts))
    console.print(Text(pen.text(title), style="bold"), highlight=False)


def _print_below(
    legend: Sequence[Look], remarks: Sequence[str], numbers: Sequence[RenderableType], pen: Pen, console: Console
) -> None:
    texts = [Text(pen.text(remark)) for remark in remarks]
    console.print(*legend_lines(legend, pen, console.width), *texts, *numbers, sep="\n", highlight=False)


def _print_notes(notes: Sequence[str], pen: Pen, console: Console) -> None:
    for note in notes:
        console.print(Text(pen.text(f"! {note}")), highlight=False)


def _remarks(run: Run, chosen: Sequence[DeviceFigures], notable: Sequence[NotableRank]) -> Iterator[str]:
    """Yield what the picture does not show, and which ranks to look at."""
    empty = [timeline for timeline in run.timelines if not len(timeline.windows)]
    if empty:
        yield f"Not drawn, as they have no step: {', '.join(_labels(empty))}."
    names = _labels(run.timelines)
    more = len(run.timelines) - len(empty) - len(chosen)
    reasons = [f"{names[rank.index]} ({rank.why})" for rank in notable if rank.why][:MAX_REASONS]
    if more or [rank.why for rank in notable if rank.why] != ["typical"]:
        yield from [f"Look at: {', '.join(reasons)}."] if reasons else []
    if more:
        yield f"{plural(more, 'more rank')} not drawn: choose with --ranks, for example --ranks 8-15."


def _scale_remarks(scale: Scale, steps: int, shared: bool) -> Iterator[str]:
    """Yield what the axis can't show."""
    if not shared:
        yield "Each rank is drawn from its own first step: the clocks are too far apart for one axis."
    if steps * MIN_CELLS_PER_STEP > scale.cells:
        yield "Many steps for this width: a cell shows only what fills most of it. Choose some with --steps A:B."


def _labels(timelines: Sequence[Timeline]) -> list[str]:
    ranks = [timeline.rank for timeline in timelines]
    several = {rank for rank in ranks if ranks.count(rank) > 1}
    return [f"rank {t.rank}" + (f" GPU {t.device}" if t.rank in several else "") for t in timelines]


def _origins(chosen: Sequence[DeviceFigures]) -> tuple[list[int], int, bool]:
    """Return each rank's origin, the length of the axis, and whether the ranks share it.

    They do, unless each would get only a small part of it.
    """
    starts = [int(device.timeline.windows.bounds[0]) for device in chosen]
    ends = [int(device.timeline.windows.bounds[-1]) for device in chosen]
    first, span = min(starts), max(ends) - min(starts)
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    if span > 3 * longest:
        return starts, max(longest, 1), False
    return [first] * len(chosen), max(span, 1), True
