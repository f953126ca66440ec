"""``dptrace export``: all ranks in one trace for Perfetto or Chrome."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dptrace.commands.shared.answer import Destination, Form, file_options
from dptrace.commands.shared.options import Selection, align_option, opening_options, run_options
from dptrace.commands.shared.output import print_hint, print_notes, progress
from dptrace.commands.shared.reading import open_with_progress
from dptrace.core.files import atomic_write
from dptrace.core.units import byte_size, plural
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from dptrace.export.tracks import AlignedRun
    from dptrace.run.run import Run


def _form(suffix: str) -> Form:
    return Form("a trace", (suffix,), lambda make, path: make(path, suffix))


_FORMATS = {"perfetto": _form(".pftrace"), "chrome-gz": _form(".json.gz"), "chrome": _form(".json")}
"""By the names that --format has."""


@click.command()
@run_options
@file_options(*_FORMATS.values(), formats=_FORMATS, required=True)
@align_option
@opening_options
def command(
    paths: tuple[str, ...],
    selection: Selection,
    to: Destination,
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
    from dptrace.export.tracks import align_run

    run = open_with_progress(paths, read_options, verbosity, selection)
    aligned_run, ranks = align_run(run), len(run.ranks)
    written = [_write(run, aligned_run, form, path, verbosity) for form, path in to.targets if path is not None]
    print_notes(dict.fromkeys((*run.notes, *aligned_run.notes)))
    for line in written:
        print_hint(line, verbosity)
    if ranks > 1:
        print_hint(f"{aligned_run.clock_summary[0].upper()}{aligned_run.clock_summary[1:]}.", verbosity)
    print_hint("Open it at https://ui.perfetto.dev (drag it in); the trace stays on your machine.", verbosity)


def _write(run: Run, aligned_run: AlignedRun, form: Form, path: Path, verbosity: str) -> str:
    """Write a trace, and return what was written."""
    from dptrace.export.formats import write_trace

    with atomic_write(path) as temporary, progress("Writing", verbosity) as show:

        def make(file: Path, suffix: str) -> int:
            return write_trace(run, file, suffix, lambda done: show(done / len(run.timelines), ""), aligned_run)

        slices = form.write(make, temporary)
    content = f"{plural(len(run.ranks), 'rank')}, {plural(slices, 'slice')}, {byte_size(path.stat().st_size)}"
    return f"Wrote {path}: {content}."
