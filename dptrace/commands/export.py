"""``dptrace export``: all ranks in one trace for Perfetto or Chrome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.options import Selection, Toggle, force_option, opening_options, run_options
from dptrace.commands.shared.output import OutputFile, print_hint, print_notes, progress
from dptrace.commands.shared.reading import open_with_progress
from dptrace.core.files import atomic_write, check_output
from dptrace.core.units import byte_size, plural, sanitize
from dptrace.errors import DptraceError, UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from dptrace.export.tracks import AlignedRun
    from dptrace.run.run import Run

_FORMATS = {"perfetto": ".pftrace", "chrome-gz": ".json.gz", "chrome": ".json", "perfetto-zip": ".zip"}
_FORMAT = "perfetto, chrome-gz, chrome or perfetto-zip, whatever the file's name."


@click.command()
@run_options
@click.option(
    "-o",
    "--output",
    required=True,
    type=OutputFile(),
    metavar="FILE",
    help="File to write: NAME.pftrace, NAME.json.gz, NAME.json or NAME.zip.",
)
@force_option
@click.option("--format", "named", type=click.Choice(list(_FORMATS)), metavar="NAME", help=_FORMAT)
@click.option("--align/--no-align", cls=Toggle, default=True, help="Put all ranks on one clock. [--align]")
@opening_options
def command(
    paths: tuple[str, ...],
    selection: Selection,
    output: Path,
    force: bool,
    named: str | None,
    align: bool,
    read_options: ReadOptions,
    verbosity: str,
) -> None:
    """Merge all ranks of RUN into one trace: steps, phases, exposed and overlapped communication, streams.

    Every GPU becomes a process with a track for its steps, for the parts of each step, for exposed and for overlapped
    communication, and for each stream, and with counters: bytes in flight, whether communication is overlapped, and
    the length of the launch queue. Clocks are aligned by the ends of the collectives that the ranks share, and a
    collective's members on all ranks are linked. Adding up the slices of "phases" by name gives the figures of
    dptrace analyze.

    NAME.pftrace is Perfetto's own format, NAME.json.gz and NAME.json are Chrome trace events, and NAME.zip holds the
    ranks' own files with their clock offsets.

    \b
    Examples:
      dptrace export runs/interleaved -o interleaved.pftrace
      dptrace export runs/ddp --ranks 0-3 --steps 4:6 -o part.pftrace
      dptrace export rank0.json.gz rank1.json.gz -o both.json.gz
      dptrace export runs/interleaved -o recorded.zip
    """
    from dptrace.export.formats import BUNDLE, format_of
    from dptrace.export.tracks import align_run

    suffix = _FORMATS[named] if named else format_of(output)
    check_output(output, force)
    if suffix == BUNDLE and selection.steps is not None:
        raise UsageError("A zip holds the ranks' files as they were recorded; leave --steps out, or choose .pftrace.")
    opener = _opener(paths) if suffix == BUNDLE else None
    run = open_with_progress(paths, read_options, verbosity, selection)
    aligned_run = align_run(run, align)
    content = _write(run, aligned_run, output, suffix, opener, verbosity)
    print_notes(dict.fromkeys((*run.notes, *aligned_run.notes)))
    ranks = len(run.ranks)
    print_hint(f"Wrote {output}: {plural(ranks, 'rank')}, {content}, {byte_size(output.stat().st_size)}.", verbosity)
    if ranks > 1:
        print_hint(f"{aligned_run.clock_summary[0].upper()}{aligned_run.clock_summary[1:]}.", verbosity)
    print_hint("Open it at https://ui.perfetto.dev (drag it in); the trace stays on your machine.", verbosity)


def _write(
    run: Run,
    aligned_run: AlignedRun,
    output: Path,
    suffix: str,
    opener: Callable[[str], AbstractContextManager[Any]] | None,
    verbosity: str,
) -> str:
    """Write the file and return what it holds."""
    from dptrace.export.formats import write_trace

    with atomic_write(output) as temporary, progress("Writing", verbosity) as show:

        def done(timelines: float) -> None:
            show(timelines / len(run.timelines), "")

        if opener is None:
            return plural(write_trace(run, temporary, suffix, done, aligned_run), "slice")
        from dptrace.export.zip_bundle import write_bundle

        with temporary.open("wb") as file:
            names = write_bundle(run, aligned_run, file, opener, done)
        return f"{plural(len(names), 'file')} as recorded (unpacked, else unmodified)"


def _opener(paths: Sequence[str]) -> Callable[[str], AbstractContextManager[Any]]:
    """Return a function that opens the file of a timeline's path again.

    A timeline names its file as it is shown, without secrets and with control characters spelled out; the paths that
    the user typed lead to the file itself.
    """
    from dptrace.readers.discovery import find
    from dptrace.readers.storage import open_source

    files = find(paths).files
    if any(file.single_pass for file in files):
        raise UsageError("A zip reads its files twice, and a pipe can be read once only: save it as a file first.")
    known = {sanitize(file.address): file for file in files}
    if len(known) < len(files):
        raise DptraceError("Two files of RUN differ only in characters that can't be shown; rename one of them.")

    def open_again(path: str) -> AbstractContextManager[Any]:
        if path not in known:
            raise DptraceError(f"{path}: can't be found to put it into the zip; was it moved or renamed meanwhile?")
        return open_source(known[path])

    return open_again
