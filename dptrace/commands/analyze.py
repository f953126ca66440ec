"""``dptrace analyze``: the split of each step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.answer import Answer, Destination, answer_options
from dptrace.commands.shared.options import (
    WORKLOAD_OPTIONS,
    Selection,
    gains_option,
    opening_options,
    run_options,
    with_workload,
    workload_options,
)
from dptrace.commands.shared.output import print_hint, print_notes, progress, quoted_paths
from dptrace.commands.shared.reading import (
    GAINS_HINT,
    gains_wanted,
    open_with_progress,
    with_gains,
)
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from dptrace.run.run import Run


@click.command()
@run_options
@click.option("--all", "every", is_flag=True, help="Print every table in full: each step, rank and collective.")
@click.option("--collectives", is_flag=True, help="Print a row for each collective; as a table, or with --csv.")
@click.option("--memory", is_flag=True, help="Print memory: peaks, what was alive at them; with --json, add it.")
@gains_option
@answer_options(csv="Print a CSV row for each rank and step (times in ns).")
@click.option("--hta-compat", "as_hta", is_flag=True, help="HTA's temporal breakdown and overlap, as HTA defines them.")
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
    to: Destination,
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
    options = _Options(to=to, **shown)
    options.check()
    if options.as_hta:
        if selection or dask or any(workload.values()) or read_options != ReadOptions(strict=read_options.strict):
            raise UsageError(_HTA_ALONE)
        _write_hta_compat(paths, options, read_options.strict)
        return
    gains = options.prints_findings and dask is None and gains_wanted(options.gains, paths)
    figures_only = _figures_only(selection, dask, options) and not gains
    read_options = replace(read_options, figures_only=figures_only, dask=dask)
    run = with_workload(open_with_progress(paths, read_options, verbosity, selection), **workload)
    to.write(_answer(with_gains(run, verbosity) if gains else run, options))
    if not to.as_text:
        print_notes(run.notes)
    elif options.gains is None and options.prints_findings and not gains:
        print_hint(GAINS_HINT, verbosity)
    if to.on_terminal:
        view = " --view memory" if options.memory else ""
        print_hint(f"Next: dptrace view {quoted_paths(paths)}{view}", verbosity)


_HTA_ALONE = "--hta-compat can be combined with --json, --csv, --all, --strict and -o only."


def _figures_only(selection: Selection, dask: str | None, options: _Options) -> bool:
    """Return whether the figures suffice; some steps' are computed from the intervals, and memory from the files."""
    if dask and options.gains:
        raise UsageError("--gains reads the files again, and --dask returns figures only; leave one of them out.")
    if dask and options.memory:
        raise UsageError("--memory reads the files again, and --dask returns figures only; leave one of them out.")
    if dask and selection.steps is not None:
        raise UsageError("--steps needs every interval, and --dask returns figures only; leave one of them out.")
    return selection.steps is None and not options.memory and (not options.lists_kernels or bool(dask))


@dataclass(frozen=True)
class _Options:
    """What to show of a run, and where."""

    to: Destination
    every: bool
    collectives: bool
    memory: bool
    as_hta: bool
    align: bool
    gains: bool | None

    @property
    def prints_findings(self) -> bool:
        """Whether findings are printed, of which gains can be computed: those on clocks that are corrected."""
        return not (self.to.form == "csv" or self.as_hta or self.collectives or self.memory) and self.align

    @property
    def lists_kernels(self) -> bool:
        """Whether kernels are listed, so that the intervals must be kept."""
        return self.every and self.to.as_text and not self.collectives

    def check(self) -> None:
        """Refuse options that would be ignored."""
        form = self.to.form
        if self.as_hta and self.collectives:
            raise UsageError(_HTA_ALONE)
        if form == "json" and self.collectives:
            raise UsageError("--json already contains the collectives; leave --collectives out.")
        if self.memory and (self.collectives or self.as_hta):
            raise UsageError("--memory prints tables of its own; leave --collectives and --hta-compat out.")
        if self.gains and not self.prints_findings:
            raise UsageError(
                "--gains is about findings, which --csv, --collectives, --memory and --hta-compat leave out; "
                "--no-align compares clocks that a replay would correct."
            )
        if not self.align and (form == "csv" or self.collectives or self.as_hta or (self.memory and form != "json")):
            raise UsageError("--no-align only changes figures across ranks; leave it out here.")


def _write_hta_compat(paths: tuple[str, ...], options: _Options, strict: bool) -> None:
    from dptrace.hta.definitions import COMPATIBLE_WITH, hta_compat
    from dptrace.readers.discovery import find

    with progress("Reading", options.to.verbosity, measured=False):
        compat = hta_compat(find(paths), strict)

    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.data_frame import print_frame

        title = f"HTA {COMPATIBLE_WITH}'s temporal breakdown and overlap"
        print_frame(compat.frame, title, console, options.every)

    options.to.write(Answer(tables, compat.to_dict, lambda: compat.frame))
    print_notes(compat.notes)


def _answer(run: Run, options: _Options) -> Answer:
    every = options.every

    def tables(console: Console) -> None:
        from dptrace.viewers.base.memory_table import print_memory
        from dptrace.viewers.terminal.summary import print_collectives, print_run

        if options.memory:
            print_memory(run, console, every)
        elif options.collectives:
            print_collectives(run, console, every)
        else:
            print_run(run, console, every, options.align)

    if options.memory:
        from dptrace.core.table import frame
        from dptrace.run.columns import MEMORY_PEAKS
        from dptrace.run.memory import device_reports, figures_with_memory, peak_rows

        def peaks() -> pd.DataFrame:
            return frame(peak_rows(device_reports(run)), MEMORY_PEAKS)

        return Answer(tables, lambda: figures_with_memory(run, options.align), peaks)
    return Answer(tables, lambda: run.to_dict(options.align), run.collectives if options.collectives else run.steps)
