"""``dptrace report``: findings, charts and tables of a run on one page."""

from __future__ import annotations

from pathlib import Path

import click

from dptrace.commands.shared.answer import check_file
from dptrace.commands.shared.options import (
    Selection,
    align_option,
    force_option,
    opening_options,
    run_options,
)
from dptrace.commands.shared.output import OutputFile, file_stem, print_hint, quoted_paths, write_page
from dptrace.commands.shared.reading import open_with_progress, with_findings
from dptrace.load.options import ReadOptions


@click.command()
@run_options
@click.option("-o", "--output", type=OutputFile(), help="Write to this file. [RUN-report.html in this folder]")
@force_option
@align_option
@opening_options
def command(
    paths: tuple[str, ...],
    selection: Selection,
    output: Path | None,
    force: bool,
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
    path = output or Path(f"{file_stem(paths[0])}-report.html")
    check_file(path, force, ("html",))
    run = with_findings(
        open_with_progress(paths, read_options, verbosity, selection, replayed=True, all_ranks=False), verbosity
    )
    from dptrace.viewers.pages.report import document

    write_page(path, lambda: document(run), verbosity)
    print_hint(f"Next: dptrace view {quoted_paths(paths)}", verbosity)
