"""``dptrace report``: all that is told of a run, on one page to attach to a ticket."""

from __future__ import annotations

from pathlib import Path

import click

from dptrace.commands.shared.output import OutputFile
from dptrace.commands.shared.shared import (
    open_with_progress,
    print_hint,
    progress,
    quoted_paths,
    reading_options,
    run_argument,
    verbosity_options,
)
from dptrace.core.files import atomic_write, check_output
from dptrace.load.options import ReadOptions
from dptrace.readers.sources.url import is_url, last_part, redact


@click.command()
@run_argument
@click.option("-o", "--output", type=OutputFile(), help="Write to this file. [RUN-report.html in this folder]")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@click.option("--ranks", metavar="LIST", help="Only these ranks: 0,1 or 0-3.")
@click.option("--steps", metavar="FIRST:LAST", help="Only these steps, by their numbers in the trace: 4:6 or 4.")
@reading_options
@verbosity_options
def command(
    paths: tuple[str, ...],
    output: Path | None,
    force: bool,
    ranks: str | None,
    steps: str | None,
    read_options: ReadOptions,
    verbosity: str,
) -> None:
    """Write a report of RUN: findings, Gantt chart, breakdown, communication, idle time, and how it was recorded.

    The report is one HTML file below 10 MB that needs no network, to attach to a ticket or to print.

    \b
    Examples:
      dptrace report runs/interleaved
      dptrace report runs/ddp -o ddp-report.html
    """
    place = output or Path(f"{_name(paths[0])}-report.html")
    check_output(place, force)
    from dptrace.commands.view import parse_ranks, parse_steps

    selection = parse_ranks(ranks) if ranks is not None else None, parse_steps(steps) if steps is not None else None
    run = open_with_progress(paths, read_options, verbosity).select(*selection)
    from dptrace.viewers.pages.report import document

    with progress("Writing", verbosity, measured=False):
        page = document(run)
    with atomic_write(place) as temporary:
        temporary.write_text(page, encoding="utf-8")
    print_hint(
        f"Wrote {place} ({len(page.encode()) / 1e6:.1f} MB). Next: dptrace view {quoted_paths(paths)}", verbosity
    )


def _name(path: str) -> str:
    """Name the file after the run, by letters that are safe in file names."""
    last = last_part(redact(path)) if is_url(path) else Path(path).absolute().name
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in last).lstrip(".")[:60] or "run"
