"""``dptrace export``: all ranks in one trace for Perfetto or Chrome."""

from __future__ import annotations

from pathlib import Path

import click

from dptrace.commands.shared.options import Selection, align_option, force_option, opening_options, run_options
from dptrace.commands.shared.output import OutputFile, print_hint, print_notes, progress
from dptrace.commands.shared.reading import open_with_progress
from dptrace.core.files import atomic_write, check_output
from dptrace.core.units import byte_size, plural
from dptrace.load.options import ReadOptions

_FORMATS = {"perfetto": ".pftrace", "chrome-gz": ".json.gz", "chrome": ".json"}
_FORMAT = "perfetto, chrome-gz or chrome, whatever the file's name."


@click.command()
@run_options
@click.option(
    "-o",
    "--output",
    required=True,
    type=OutputFile(),
    metavar="FILE",
    help="File to write: NAME.pftrace, NAME.json.gz or NAME.json.",
)
@force_option
@click.option("--format", "named", type=click.Choice(list(_FORMATS)), metavar="NAME", help=_FORMAT)
@align_option
@opening_options
def command(
    paths: tuple[str, ...],
    selection: Selection,
    output: Path,
    force: bool,
    named: str | None,
    read_options: ReadOptions,
    verbosity: str,
) -> None:
    """Merge all ranks of RUN into one trace: steps, phases, exposed and overlapped communication, streams.

    Every GPU becomes a process with a track for its steps, for the parts of each step, for exposed and for overlapped
    communication, and for each stream, and with counters: bytes in flight, whether communication is overlapped, and
    the length of the launch queue. Clocks are aligned by the ends of the collectives that the ranks share, and a
    collective's members on all ranks are linked. Adding up the slices of "phases" by name gives the figures of
    dptrace analyze.

    NAME.pftrace is Perfetto's own format; NAME.json.gz and NAME.json are Chrome trace events.

    \b
    Examples:
      dptrace export runs/interleaved -o interleaved.pftrace
      dptrace export runs/ddp --ranks 0-3 --steps 4:6 -o part.pftrace
      dptrace export rank0.json.gz rank1.json.gz -o both.json.gz
    """
    from dptrace.export.formats import format_of, write_trace
    from dptrace.export.tracks import align_run

    suffix = _FORMATS[named] if named else format_of(output)
    check_output(output, force)
    run = open_with_progress(paths, read_options, verbosity, selection)
    aligned_run = align_run(run)
    with atomic_write(output) as temporary, progress("Writing", verbosity) as show:
        slices = write_trace(run, temporary, suffix, lambda done: show(done / len(run.timelines), ""), aligned_run)
    print_notes(dict.fromkeys((*run.notes, *aligned_run.notes)))
    ranks = len(run.ranks)
    content = f"{plural(ranks, 'rank')}, {plural(slices, 'slice')}, {byte_size(output.stat().st_size)}"
    print_hint(f"Wrote {output}: {content}.", verbosity)
    if ranks > 1:
        print_hint(f"{aligned_run.clock_summary[0].upper()}{aligned_run.clock_summary[1:]}.", verbosity)
    print_hint("Open it at https://ui.perfetto.dev (drag it in); the trace stays on your machine.", verbosity)
