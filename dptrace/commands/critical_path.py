"""``dptrace critical-path``: what sets the length of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dptrace.commands.shared.answer import CSV, HTML, JSON, TEXT, Answer, Destination, answer_options
from dptrace.commands.shared.numbers import Whole
from dptrace.commands.shared.options import opening_options, run_argument
from dptrace.commands.shared.output import print_hint, print_notes, progress, quoted_run
from dptrace.commands.shared.reading import open_with_progress
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@run_argument
@click.option("--step", type=Whole(0), metavar="N", help="Number of the step. [the one of median length]")
@click.option("--all", "all_rows", is_flag=True, help="Print every piece of the chain.")
@click.option(
    "--all-ranks", is_flag=True, help="Replay every rank: of more than 64, some stand for those that are like them."
)
@answer_options(HTML, csv="Print CSV: by default a row for each kernel of the step.")
@click.option("--by", type=click.Choice(("kernel", "module")), help="What a row of --csv stands for. [kernel]")
@opening_options
def command(
    paths: tuple[str, ...],
    step: int | None,
    all_rows: bool,
    all_ranks: bool,
    to: Destination,
    by: str | None,
    read_options: ReadOptions,
    verbosity: str,
) -> None:
    """Find the chain of kernels, collectives, launches and host gaps that sets the length of a step of RUN.

    The chain goes through the step of the rank on which it ends last, across ranks, without a gap: only what lies on
    it can make the step shorter. For what takes most of it, the run is replayed with 10 % less time, since another
    chain may be nearly as long. --csv lists how much longer each kernel of the step could take without delaying its
    end, and with --by module the time on the chain by module, if the trace has modules.
    -o FILE.html draws the chain on the step's Gantt chart.

    \b
    Examples:
      dptrace critical-path runs/ddp
      dptrace critical-path runs/ddp --step 12 --all
      dptrace critical-path runs/ddp --csv -o slack.csv
      dptrace critical-path runs/ddp --step 12 -o path.html
    """
    if by is not None and not to.has(CSV):
        raise UsageError(
            "--by chooses the rows of --csv: add --csv. Text and --json have modules where the trace does."
        )
    from dptrace.api import critical_path

    run = open_with_progress(paths, read_options, verbosity, replayed=True, all_ranks=all_ranks)
    with progress("Replaying", verbosity, measured=False):
        path = critical_path(run, None if step is None else f"ProfilerStep#{step}", all_ranks)

    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.replay import print_critical_path

        print_critical_path(path, console, all_rows)

    def page() -> str:
        from dptrace.viewers.gantt.page.document import step_document

        return step_document(run, path)

    rows = path.modules if by == "module" else path.kernels
    to.write(Answer({TEXT: tables, JSON: path.to_dict, CSV: rows, HTML: page}))
    print_notes((*run.notes, *(doubt.text for doubt in path.doubts if doubt.kind == "represented" and to.has(CSV))))
    if to.on_terminal:
        print_hint(f"Next: dptrace whatif {quoted_run(paths, read_options)}", verbosity)
