"""``dptrace analyze``: the split of each step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.options import (
    Selection,
    gains_option,
    json_option,
    opening_options,
    output_option,
    run_options,
)
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
from dptrace.commands.shared.reading import GAINS_HINT, gains_wanted, open_with_progress, with_gains
from dptrace.commands.shared.snapshots import print_snapshots, snapshots_in
from dptrace.commands.shared.workload_options import WORKLOAD_OPTIONS, with_workload, workload_options
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    import pandas as pd

    from dptrace.readers.sources.source import Source
    from dptrace.run.run import Run


@click.command()
@run_options
@click.option("--all", "every", is_flag=True, help="Print every table in full: each step, rank and collective.")
@click.option("--collectives", is_flag=True, help="Print a row for each collective; as a table, or with --csv.")
@click.option("--memory", is_flag=True, help="Print memory: peaks, what was alive at them; with --json, add it.")
@gains_option
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print a CSV row for each rank and step (times in ns).")
@click.option("--hta-compat", "as_hta", is_flag=True, help="HTA's temporal breakdown and overlap, as HTA defines them.")
@output_option
@click.option("--no-align", "align", flag_value=False, default=True, help="Compare ranks without correcting clocks.")
@click.option(
    "--dask",
    metavar="ADDRESS",
    help="Read on a Dask cluster (tcp://scheduler:8786), or 'local', for figures only.",
)
@workload_options
@opening_options
def command(
    paths: tuple[str, ...],
    selection: Selection,
    dask: str | None,
    read_options: ReadOptions,
    verbosity: str,
    **shown: Any,
) -> None:
    """Split each step of RUN: forward, backward, optimizer, exposed and overlapped communication, idle.

    RUN is a run folder, a trace file, several files (one for each rank), a folder or a glob of traces. The parts of
    a step add up to its wall time exactly; overlapped communication runs under compute and is listed separately.

    \b
    Examples:
      dptrace analyze runs/interleaved
      dptrace analyze runs/ddp --ranks 0-3 --steps 4:6 --all
      dptrace analyze rank0.json.gz rank1.json.gz --csv > split.csv
      dptrace analyze runs/llama --params 7B --tokens 4M
      dptrace analyze runs/ddp --json | jq '.ranks[0].total'
      dptrace analyze runs/ddp --memory
      dptrace analyze s3://bucket/run --dask tcp://scheduler:8786
    """
    workload = {name: shown.pop(name) for name in WORKLOAD_OPTIONS}
    output_options = _OutputOptions(**shown)
    output_options.check()
    if output_options.memory and (files := snapshots_in(paths)):
        _print_snapshots(files, output_options, bool(selection or dask or any(workload.values())))
        return
    if output_options.as_hta:
        if selection or dask or any(workload.values()) or read_options != ReadOptions(strict=read_options.strict):
            raise UsageError(_HTA_ALONE)
        _hta_compat(paths, output_options, read_options.strict, verbosity)
    else:
        gains = output_options.prints_findings and dask is None and gains_wanted(output_options.gains, paths)
        figures_only = _figures_only(selection, dask, output_options) and not gains
        read_options = replace(read_options, figures_only=figures_only, dask=dask)
        run = with_workload(open_with_progress(paths, read_options, verbosity, selection), **workload)
        _print(with_gains(run, verbosity) if gains else run, output_options)
        if output_options.gains is None and output_options.as_tables and output_options.prints_findings and not gains:
            print_hint(GAINS_HINT, verbosity)
    if output_options.output is not None:
        print_hint(f"Wrote {output_options.output}.", verbosity)
    elif output_options.as_tables and not output_options.as_hta:
        view = " --view memory" if output_options.memory else ""
        print_hint(f"Next: dptrace view {quoted_paths(paths)}{view}", verbosity)


_HTA_ALONE = "--hta-compat can be combined with --json, --csv, --all, --strict and -o only."


def _figures_only(selection: Selection, dask: str | None, output_options: _OutputOptions) -> bool:
    """Return whether the figures suffice; some steps' are computed from the intervals, and memory from the files."""
    if dask and output_options.gains:
        raise UsageError("--gains reads the files again, and --dask returns figures only; leave one of them out.")
    if dask and output_options.memory:
        raise UsageError("--memory reads the files again, and --dask returns figures only; leave one of them out.")
    if dask and selection.steps is not None:
        raise UsageError("--steps needs every interval, and --dask returns figures only; leave one of them out.")
    lists_kernels = output_options.lists_kernels and not dask
    return selection.steps is None and not output_options.memory and not lists_kernels


@dataclass(frozen=True)
class _OutputOptions:
    """What to print, and where."""

    every: bool
    collectives: bool
    memory: bool
    as_json: bool
    as_csv: bool
    as_hta: bool
    output: Path | None
    force: bool
    align: bool
    gains: bool | None

    @property
    def prints_findings(self) -> bool:
        """Whether findings are printed, of which gains can be computed: those on clocks that are corrected."""
        return not (self.as_csv or self.as_hta or self.collectives or self.memory) and self.align

    @property
    def as_tables(self) -> bool:
        return not self.as_json and not self.as_csv

    @property
    def lists_kernels(self) -> bool:
        """Whether kernels are listed, so that the intervals must be kept."""
        return self.every and self.as_tables and not self.collectives

    def check(self) -> None:
        """Refuse options that would be ignored, and a file that would be overwritten."""
        check_answer(self.output, self.force, self.as_json, self.as_csv)
        if self.as_hta and self.collectives:
            raise UsageError(_HTA_ALONE)
        if self.as_json and self.collectives:
            raise UsageError("--json already contains the collectives; leave --collectives out.")
        if self.memory and (self.collectives or self.as_hta):
            raise UsageError("--memory prints tables of its own; leave --collectives and --hta-compat out.")
        if self.gains and not self.prints_findings:
            raise UsageError(
                "--gains is about findings, which --csv, --collectives, --memory and --hta-compat leave out; "
                "--no-align compares clocks that a replay would correct."
            )
        if not self.align and (self.as_csv or self.collectives or self.as_hta or (self.memory and not self.as_json)):
            raise UsageError("--no-align only changes figures across ranks; leave it out here.")


def _print_snapshots(files: list[Source], output_options: _OutputOptions, of_a_run: bool) -> None:
    """Print memory snapshots; *of_a_run* says whether options are given that only a run has."""
    if of_a_run or output_options.as_csv:
        raise UsageError("A memory snapshot has no steps, ranks or rows: --memory takes --json, --all and -o here.")
    print_snapshots(files, output_options.as_json, output_options.every, output_options.output)


def _hta_compat(paths: tuple[str, ...], output_options: _OutputOptions, strict: bool, verbosity: str) -> None:
    from dptrace.hta.definitions import COMPATIBLE_WITH, hta_compat
    from dptrace.readers.sources.discovery import find
    from dptrace.viewers.terminal.tables.data_frame import print_frame

    with progress("Reading", verbosity, measured=False):
        compat = hta_compat(find(paths), strict)
    title = f"HTA {COMPATIBLE_WITH}'s temporal breakdown and overlap"
    if output_options.as_tables:
        print_tables(
            lambda console: print_frame(compat.frame, title, console, output_options.every), output_options.output
        )
    else:
        emit(json_text(compat.to_dict()) if output_options.as_json else csv_text(compat.frame), output_options.output)
    print_notes(compat.notes)


def _frame(run: Run, output_options: _OutputOptions) -> pd.DataFrame:
    if output_options.memory:
        return run.memory()
    return run.collectives() if output_options.collectives else run.steps()


def _print(run: Run, output_options: _OutputOptions) -> None:
    output, every = output_options.output, output_options.every
    if not output_options.as_tables:
        if output_options.as_json:
            emit(json_text(run.to_dict(output_options.align, output_options.memory)), output)
        else:
            emit(csv_text(_frame(run, output_options)), output)
        print_notes(run.notes)
        return
    from dptrace.viewers.terminal.summary import print_collectives, print_run

    if output_options.memory:
        from dptrace.viewers.terminal.tables.memory import print_memory

        print_tables(lambda console: print_memory(run, console, every), output)
    elif output_options.collectives:
        print_tables(lambda console: print_collectives(run, console, every), output)
    else:
        print_tables(lambda console: print_run(run, console, every, output_options.align), output)
