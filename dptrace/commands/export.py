"""``dptrace export``: all ranks in one trace for Perfetto or Chrome."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from dptrace.commands.common import (
    check_output,
    comm_pattern_option,
    console,
    open_with_progress,
    replacing,
    run_argument,
)


@click.command()
@run_argument
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="NAME.pftrace for Perfetto's own format, NAME.json.gz or NAME.json for Chrome trace events.",
)
@click.option("--force", is_flag=True, help="Overwrite the file.")
@comm_pattern_option
def command(paths: tuple[str, ...], output: Path, force: bool, comm_patterns: tuple[str, ...]) -> None:
    """Merge all ranks of RUN into one trace: steps, phases, exposed and overlapped communication, streams.

    Every GPU becomes a process with a track for its steps, for the parts of each step, for communication that is
    exposed and that is overlapped, and for each stream. The ranks' clocks are left as recorded. Adding up the slices
    of "phases" by name gives the figures of dptrace analyze.

    \b
    Examples:
      dptrace export runs/interleaved -o interleaved.pftrace
      dptrace export rank0.json.gz rank1.json.gz -o both.json.gz
    """
    from dptrace.exports import format_of, write_trace

    suffix = format_of(output)
    check_output(output, force)
    run = open_with_progress(paths, comm_patterns)
    with replacing(output) as beside, _progress(len(run.timelines)) as progress:
        slices = write_trace(run, beside, suffix, progress)
    size = output.stat().st_size / 1e6
    for note in run.notes:
        click.echo(f"! {note}", err=True)
    ranks = len({timeline.rank for timeline in run.timelines})
    click.echo(f"Wrote {output}: {ranks} rank{'s' if ranks > 1 else ''}, {slices:,} slices, {size:.1f} MB.")
    click.echo("Open it at https://ui.perfetto.dev (drag it in); the trace stays on your machine.")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[float], None]]:
    """On a terminal, show how far the writing is once it takes over a second."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    bar = Progress(
        TextColumn("Writing"), BarColumn(), TaskProgressColumn(), console=console(stderr=True), transient=True
    )
    task, begun = bar.add_task("", total=total), time.monotonic()

    def show(done: float) -> None:
        if not bar.live.is_started and time.monotonic() - begun > 1:
            bar.start()
        bar.update(task, completed=done)

    try:
        yield show
    finally:
        bar.stop()
