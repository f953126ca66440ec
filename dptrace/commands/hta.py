"""``dptrace hta``: the analyses of Holistic Trace Analysis, on dptrace's reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dptrace.commands.shared.answer import CSV, JSON, TEXT, Answer, Destination, answer_options
from dptrace.commands.shared.options import quiet_option, strict_option, window_option
from dptrace.commands.shared.output import print_notes, progress
from dptrace.core.units import nearest
from dptrace.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("path", metavar="RUN", type=click.Path())
@click.argument("analysis", metavar="[ANALYSIS]", required=False)
@answer_options(csv="Print a table as CSV; --table chooses one of several.")
@click.option("--table", "only", metavar="NAME", help="Print only this table.")
@click.option("--all", "all_rows", is_flag=True, help="Print every table in full.")
@window_option
@strict_option
@quiet_option
def command(
    path: str,
    analysis: str | None,
    to: Destination,
    only: str | None,
    all_rows: bool,
    window: int | None,
    strict: bool,
    verbosity: str,
) -> None:
    """Run ANALYSIS of Holistic Trace Analysis (HTA) on RUN, with HTA's own settings; without ANALYSIS, list them.

    The figures are HTA's, computed by HTA; only reading is dptrace's. Every other setting, plot and analysis of HTA is
    in Python: dptrace.hta_analysis(dptrace.open("RUN")) has all of HTA's methods.

    \b
    Examples:
      dptrace hta runs/ddp
      dptrace hta runs/ddp idle-breakdown
      dptrace hta traces/ queue-length --window 2
      dptrace hta runs/ddp launch-statistics --csv > launches.csv
    """
    from dptrace.hta.analyses import ANALYSES, analyze, plain_records
    from dptrace.load.windows import with_window
    from dptrace.readers.discovery import find

    if analysis is None:
        find([path])  # a name that is no run is most likely an analysis without its run
        width = max(map(len, ANALYSES))
        for name, description in ANALYSES.items():
            click.echo(f"{name:{width}}  {description.summary}")
        return
    if analysis not in ANALYSES:
        raise UsageError(
            f"No such analysis {analysis!r}.{nearest(analysis, ANALYSES)} The analyses are {', '.join(ANALYSES)}."
        )
    with progress("Analyzing", verbosity, measured=False):
        tables, notes = analyze(analysis, with_window(find([path]), window), strict)
    names = ", ".join(tables)
    if only is not None:
        if only not in tables:
            raise UsageError(f"{analysis} has no table {only}; choose from {names}.")
        tables = {only: tables[only]}
    if to.has(CSV) and len(tables) > 1:
        raise UsageError(f"{analysis} has {len(tables)} tables; choose one with --table: {names}.")

    def show(console: Console) -> None:
        from dptrace.viewers.terminal.data_frame import print_frame

        for name, frame in tables.items():
            print_frame(frame, f"{analysis}: {name.replace('_', ' ')}", console, all_rows)

    def data() -> object:
        records = {name: plain_records(frame) for name, frame in tables.items()}
        return {"schema": 1, "analysis": analysis, "tables": records, "notes": list(notes)}

    to.write(Answer({TEXT: show, JSON: data, CSV: lambda: next(iter(tables.values()))}))
    print_notes(notes)
