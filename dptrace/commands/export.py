"""``dptrace export``: all ranks in one trace for Perfetto or Chrome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import click

from dptrace.commands.shared.output import OutputFile
from dptrace.commands.shared.shared import (
    open_with_progress,
    print_hint,
    print_notes,
    progress,
    reading_options,
    run_argument,
    verbosity_options,
)
from dptrace.core.files import atomic_write, check_output
from dptrace.core.text import sanitize
from dptrace.errors import DptraceError, UsageError
from dptrace.load.options import ReadOptions

_FORMATS = {"perfetto": ".pftrace", "chrome-gz": ".json.gz", "chrome": ".json", "perfetto-zip": ".zip"}


@click.command()
@run_argument
@click.option(
    "-o",
    "--output",
    required=True,
    type=OutputFile(),
    metavar="FILE",
    help="NAME.pftrace for Perfetto's own format, NAME.json.gz or NAME.json for Chrome trace events, NAME.zip for the "
    "ranks' own files with their clocks' offsets.",
)
@click.option("--format", "named", type=click.Choice(list(_FORMATS)), help="The format, whatever the file is called.")
@click.option("--align/--no-align", default=True, help="Put all ranks on one clock, or leave times as recorded.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@reading_options
@verbosity_options
def command(
    paths: tuple[str, ...],
    output: Path,
    named: str | None,
    align: bool,
    force: bool,
    read_options: ReadOptions,
    verbosity: str,
) -> None:
    """Merge all ranks of RUN into one trace: steps, phases, exposed and overlapped communication, streams.

    Every GPU becomes a process with a track for its steps, for the parts of each step, for communication that is
    exposed and that is overlapped, and for each stream, and with counters: bytes in flight, whether communication is
    overlapped, and what waits in the launch queue. Clocks are aligned by the ends of the collectives that the ranks
    share, and a collective's members on all ranks are linked. Adding up the slices of "phases" by name gives the
    figures of dptrace analyze.

    \b
    Examples:
      dptrace export runs/interleaved -o interleaved.pftrace
      dptrace export rank0.json.gz rank1.json.gz -o both.json.gz
      dptrace export runs/interleaved -o recorded.zip
    """
    from dptrace.export.aligned_run import align_run
    from dptrace.export.formats import BUNDLE, format_of, write_trace

    suffix = _FORMATS[named] if named else format_of(output)
    check_output(output, force)
    opener = _opener(paths) if suffix == BUNDLE else None
    run = open_with_progress(paths, read_options, verbosity)
    together = align_run(run, align)
    with atomic_write(output) as temporary, progress("Writing", verbosity) as show:

        def done(timelines: float) -> None:
            show(timelines / len(run.timelines), "")

        if opener:
            from dptrace.export.zip_bundle import write_bundle

            with temporary.open("wb") as file:
                names = write_bundle(run, together, file, opener, done)
            what = f"{len(names)} file{'s' if len(names) > 1 else ''} as recorded (unpacked, else unmodified)"
        else:
            what = f"{write_trace(run, temporary, suffix, done, together):,} slices"
    size = output.stat().st_size / 1e6
    print_notes(replace(run, notes=tuple(dict.fromkeys((*run.notes, *together.notes)))))
    ranks = len({timeline.rank for timeline in run.timelines})
    print_hint(f"Wrote {output}: {ranks} rank{'s' if ranks > 1 else ''}, {what}, {size:.1f} MB.", verbosity)
    if ranks > 1:
        print_hint(f"{together.clock_summary[0].upper()}{together.clock_summary[1:]}.", verbosity)
    print_hint("Open it at https://ui.perfetto.dev (drag it in); the trace stays on your machine.", verbosity)


def _opener(paths: Sequence[str]) -> Callable[[str], BinaryIO]:
    """Give what opens the file of a timeline's path anew.

    A timeline names its file as it is shown, which leaves out secrets and spells out odd letters; what the user typed
    leads to the file itself.
    """
    from dptrace.readers.sources.discovery import find
    from dptrace.readers.sources.open import open_source

    files = find(paths).files
    if any(file.single_pass for file in files):
        raise UsageError("A pipe can be read once only, and a zip needs its file again: save it as a file first.")
    known = {sanitize(file.address): file for file in files}
    if len(known) < len(files):
        raise DptraceError("Two files of RUN differ only in letters that can't be shown; rename one of them.")

    def open_again(path: str) -> BinaryIO:
        if path not in known:
            raise DptraceError(f"{path}: can't be found again to go into the zip; was it moved or renamed meanwhile?")
        return open_source(known[path])

    return open_again
