"""``dptrace export``: all ranks in one trace for Perfetto or Chrome."""

from __future__ import annotations

from pathlib import Path

import click

from dptrace.commands.common import (
    OutputFile,
    advise,
    check_output,
    loudness_options,
    open_with_progress,
    progress,
    reading_options,
    replacing,
    run_argument,
    tell_notes,
)
from dptrace.reading import Reading


@click.command()
@run_argument
@click.option(
    "-o",
    "--output",
    required=True,
    type=OutputFile(),
    metavar="FILE",
    help="NAME.pftrace for Perfetto's own format, NAME.json.gz or NAME.json for Chrome trace events.",
)
@click.option("--force", is_flag=True, help="Overwrite the file.")
@reading_options
@loudness_options
def command(paths: tuple[str, ...], output: Path, force: bool, reading: Reading, loudness: str) -> None:
    """Merge all ranks of RUN into one trace: steps, phases, exposed and overlapped communication, streams.

    Every GPU becomes a process with a track for its steps, for the parts of each step, for communication that is
    exposed and that is overlapped, and for each stream. The ranks' clocks are left as recorded. Adding up the slices
    of "phases" by name gives the figures of dptrace analyze.

    \b
    Examples:
      dptrace export runs/interleaved -o interleaved.pftrace
      dptrace export rank0.json.gz rank1.json.gz -o both.json.gz
    """
    from dptrace.exports import format_of, write_trace

    suffix = format_of(output)
    check_output(output, force)
    run = open_with_progress(paths, reading, loudness)
    with replacing(output) as beside, progress("Writing", loudness) as show:
        slices = write_trace(run, beside, suffix, lambda done: show(done / len(run.timelines), ""))
    size = output.stat().st_size / 1e6
    tell_notes(run)
    ranks = len({timeline.rank for timeline in run.timelines})
    advise(f"Wrote {output}: {ranks} rank{'s' if ranks > 1 else ''}, {slices:,} slices, {size:.1f} MB.", loudness)
    advise("Open it at https://ui.perfetto.dev (drag it in); the trace stays on your machine.", loudness)
