"""``dptrace critical-path``: what sets the length of a step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dptrace.commands.shared.numbers import Whole
from dptrace.commands.shared.options import json_option, opening_options, output_option, run_argument
from dptrace.commands.shared.output import (
    check_answer,
    csv_text,
    emit,
    json_text,
    print_hint,
    print_notes,
    print_tables,
    quoted_paths,
)
from dptrace.commands.shared.progress import progress
from dptrace.commands.shared.reading import open_with_progress
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from dptrace.replay.critical_path import CriticalPath
    from dptrace.run.run import Run

_PAGES, _PICTURES = (".html", ".htm"), (".svg", ".png", ".pdf")


@click.command()
@run_argument
@click.option("--step", type=Whole(0), metavar="N", help="Number of the step. [the one of median length]")
@click.option("--all", "every", is_flag=True, help="Print every piece of the chain.")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: by default a row for each kernel of the step.")
@click.option("--by", type=click.Choice(("kernel", "module")), help="What a row of --csv stands for. [kernel]")
@output_option
@opening_options
def command(
    paths: tuple[str, ...],
    step: int | None,
    every: bool,
    as_json: bool,
    as_csv: bool,
    by: str | None,
    output: Path | None,
    force: bool,
    read_options: ReadOptions,
    verbosity: str,
) -> None:
    """Find the chain of kernels, collectives, launches and host gaps that sets the length of a step of RUN.

    The chain goes from the end of the step before to the end of the step, across ranks, without a gap: only what lies
    on it can make the step shorter. For what takes most of it, the run is replayed with 10 % less time, since
    another chain may be nearly as long. --csv lists how much longer each kernel of the step could take without
    delaying its end, and with --by module the time on the chain by module, if the trace has modules.
    -o FILE.html draws the chain on the step's Gantt chart.

    \b
    Examples:
      dptrace critical-path runs/ddp
      dptrace critical-path runs/ddp --step 12 --all
      dptrace critical-path runs/ddp --csv -o slack.csv
      dptrace critical-path runs/ddp --step 12 -o path.html
    """
    _check(output, as_json, as_csv, by, force)
    run = open_with_progress(paths, read_options, verbosity)
    with progress("Replaying", verbosity, measured=False):
        path = run.critical_path(step)
    if output is not None and output.suffix in _PAGES:
        _write_page(run, path, output, verbosity)
        output = None
    _print(path, output, as_json, as_csv, by, every)
    print_notes(run.notes)
    if output is not None:
        print_hint(f"Wrote {output}.", verbosity)
    elif not as_json and not as_csv:
        print_hint(f"Next: dptrace whatif {quoted_paths(paths)}", verbosity)


def _print(path: CriticalPath, output: Path | None, as_json: bool, as_csv: bool, by: str | None, every: bool) -> None:
    if as_json:
        emit(json_text(path.to_dict()), output)
    elif as_csv:
        emit(csv_text(path.modules() if by == "module" else path.kernels()), output)
    else:
        from dptrace.viewers.terminal.replay.critical_path import print_critical_path

        print_tables(lambda console: print_critical_path(path, console, every), output)


def _write_page(run: Run, path: CriticalPath, output: Path, verbosity: str) -> None:
    """Draw the path on the Gantt chart of its step."""
    from dptrace.commands.shared.pages import write_page
    from dptrace.viewers.gantt.page.critical_path import step_document

    write_page(output, lambda: step_document(run, path), verbosity)


def _check(output: Path | None, as_json: bool, as_csv: bool, by: str | None, force: bool) -> None:
    """Refuse options that contradict each other, and a file that would be overwritten, before a long read."""
    check_answer(output, force, as_json, as_csv, (*_PAGES, *_PICTURES))
    if by is not None and not as_csv:
        raise UsageError(
            "--by chooses the rows of --csv: add --csv. Text and --json have modules where the trace does."
        )
    if output is not None and output.suffix in _PICTURES:
        raise UsageError(f"{output}: the path is drawn on a page; name it .html, and save a picture from there.")
