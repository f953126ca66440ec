"""``dptrace analyze``: the split of each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dptrace.commands.shared.output import OutputFile
from dptrace.commands.shared.shared import (
    console,
    open_with_progress,
    print_hint,
    print_notes,
    progress,
    quoted_paths,
    reading_options,
    run_argument,
    verbosity_options,
)
from dptrace.core.files import atomic_write, check_output
from dptrace.core.text import sanitize
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.run.run import Run


@click.command()
@run_argument
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON (schema 1, times in ns).")
@click.option("--csv", "as_csv", is_flag=True, help="Print a CSV row for each rank and step (times in ns).")
@click.option("--collectives", is_flag=True, help="A row for each collective; as a table, or with --csv.")
@click.option("--all", "every", is_flag=True, help="Leave no rank and no step out of the tables.")
@click.option("-o", "--output", type=OutputFile(dash=True), help="Write to this file instead of the terminal.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@click.option(
    "--hta-compat", "as_hta", is_flag=True, help="HTA's temporal breakdown and overlap, by HTA's definitions (µs)."
)
@click.option("--no-align", "align", flag_value=False, default=True, help="Compare ranks by their clocks as they are.")
@click.option(
    "--dask",
    metavar="ADDRESS",
    help="Read on a Dask cluster's workers (tcp://scheduler:8786), or 'local'; figures come back.",
)
@reading_options
@verbosity_options
def command(
    paths: tuple[str, ...],
    as_json: bool,
    as_csv: bool,
    collectives: bool,
    every: bool,
    output: Path | None,
    force: bool,
    as_hta: bool,
    align: bool,
    dask: str | None,
    read_options: ReadOptions,
    verbosity: str,
) -> None:
    """Split each step of RUN: forward, backward, optimizer, exposed and overlapped communication, idle.

    RUN is a run folder, a trace file, several files (one for each rank), a folder or a glob of traces. The parts of
    a step add up to its wall time exactly; overlapped communication lies under compute and is told beside them.

    \b
    Examples:
      dptrace analyze runs/interleaved
      dptrace analyze rank0.json.gz rank1.json.gz --csv > split.csv
      dptrace analyze runs/ddp --json | jq '.ranks[0].total'
      dptrace analyze runs/ddp --hta-compat
      dptrace analyze s3://bucket/run --dask tcp://scheduler:8786
    """
    _check(as_json, as_csv, collectives, align, as_hta)
    if output is not None:
        check_output(output, force)
        if (output.suffix, as_json, as_csv) in ((".json", False, False), (".csv", False, False)):
            raise UsageError(f"{output} would hold tables; add --{output.suffix[1:]}, or let the name end in .txt.")
    if as_hta:
        if collectives or dask or read_options != ReadOptions(strict=read_options.strict):
            raise UsageError("--hta-compat goes with --json, --csv, --all, --strict and -o only.")
        _hta_compat(paths, as_json, as_csv, every, output, read_options.strict, verbosity)
        return
    run = open_with_progress(paths, replace(read_options, figures_only=True, dask=dask), verbosity)
    if as_json or as_csv:
        _emit(_json(run, align) if as_json else _csv(run, collectives), output)
        print_notes(run)
    else:
        _tables(run, collectives, every, align, output)
    if output is not None:
        print_hint(f"Wrote {output}.", verbosity)
    elif not as_json and not as_csv:
        print_hint(f"Next: dptrace view {quoted_paths(paths)}", verbosity)


def _check(as_json: bool, as_csv: bool, collectives: bool, align: bool, as_hta: bool) -> None:
    """Refuse what would be ignored."""
    if as_json and as_csv:
        raise UsageError("Choose one of --json and --csv.")
    if as_json and collectives:
        raise UsageError("--json holds the collectives already; leave --collectives out.")
    if not align and (as_csv or collectives or as_hta):
        raise UsageError("--no-align changes what is told of ranks together; leave it out here.")


def _hta_compat(
    paths: tuple[str, ...],
    as_json: bool,
    as_csv: bool,
    every: bool,
    output: Path | None,
    strict: bool,
    verbosity: str,
) -> None:
    import json

    from dptrace.hta.definitions import COMPATIBLE_WITH, hta_compat
    from dptrace.readers.sources.discovery import find
    from dptrace.viewers.terminal.data_frame import print_frame

    with progress("Reading", verbosity, measured=False):
        compat = hta_compat(find(paths), strict)
    title = f"HTA {COMPATIBLE_WITH}'s temporal breakdown and overlap"
    if as_json or as_csv:
        _emit(json.dumps(compat.to_dict(), indent=1) + "\n" if as_json else compat.frame.to_csv(index=False), output)
    else:
        _show(lambda console: print_frame(compat.frame, title, console, every), output)
    for note in compat.notes:
        click.echo(f"! {sanitize(note)}", err=True)
    if output is not None:
        print_hint(f"Wrote {output}.", verbosity)


def _json(run: Run, align: bool) -> str:
    import json

    # In ASCII, as this writes it, no name from a trace can give orders to a terminal.
    return json.dumps(run.to_dict(align), indent=1) + "\n"


def _csv(run: Run, collectives: bool) -> str:
    frame = run.collectives() if collectives else run.steps()
    texts = frame.select_dtypes(exclude="number").columns
    return frame.assign(**{name: frame[name].map(sanitize, na_action="ignore") for name in texts}).to_csv(index=False)


def _emit(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text.encode(), nl=False)  # bytes, so that the encoding of a terminal can't harm the data
        return
    with atomic_write(output) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _tables(run: Run, collectives: bool, every: bool, align: bool, output: Path | None) -> None:
    from dptrace.viewers.terminal.summary import print_collectives, print_run

    if collectives:
        _show(lambda console: print_collectives(run, console, every), output)
    else:
        _show(lambda console: print_run(run, console, every, align), output)


def _show(show: Callable[[Console], None], output: Path | None) -> None:
    """Print on the terminal, or into a file at a width that folds no table."""
    from rich.console import Console

    if output is None:
        show(console())
        return
    with atomic_write(output) as temporary, temporary.open("w", encoding="utf-8") as file:
        show(Console(file=file, width=132, highlight=False))
