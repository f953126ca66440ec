"""``dptrace report``: findings, charts and tables of a run on one page."""

from __future__ import annotations

from pathlib import Path

import click

from dptrace.commands.shared.answer import HTML, Answer, Destination, file_options
from dptrace.commands.shared.options import (
    Selection,
    align_option,
    opening_options,
    run_options,
)
from dptrace.commands.shared.output import file_stem, print_hint, quoted_run
from dptrace.commands.shared.reading import open_to_find, with_findings
from dptrace.load.options import ReadOptions


@click.command()
@run_options
@file_options(HTML, about=" [RUN-report.html in this folder]")
@align_option
@opening_options
def command(
    paths: tuple[str, ...],
    selection: Selection,
    to: Destination,
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
    to = to if to.targets else to.also(HTML, Path(f"{file_stem(paths[0])}-report.html"))
    run = with_findings(open_to_find(paths, read_options, verbosity, selection, replayed=True), verbosity)
    from dptrace.viewers.pages.report import document

    to.write(Answer({HTML: lambda: document(run)}))
    print_hint(f"Next: dptrace view {quoted_run(paths, read_options)}", verbosity)
