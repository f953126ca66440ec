"""``dptrace whatif``: what a step would take if something were different."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.replaying.whatif_options import ChangeOptions, change_options, check_changes
from dptrace.commands.shared.answer import Answer, Destination, answer_options
from dptrace.commands.shared.options import Selection, opening_options, run_options
from dptrace.commands.shared.output import OutputFile, print_hint, print_notes, quoted_paths
from dptrace.commands.shared.progress import progress
from dptrace.commands.shared.reading import open_with_progress
from dptrace.core.files import check_output
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.replay.whatif import Sweep, WhatIf
    from dptrace.run.run import Run
    from dptrace.viewers.base.marks import Drawing

_SWEEP_WIDTH = 960


_EXAMPLES = """\b
Examples:
  dptrace whatif runs/ddp                                  # how well the unchanged run is replayed
  dptrace whatif runs/ddp --no-straggler
  dptrace whatif runs/ddp --bandwidth 2x --compute 1.5x --json
  dptrace whatif runs/ddp --kernel 'flash_bwd=0.5x' --export predicted.pftrace
  dptrace whatif runs/naive --schedule ddp -o predicted.html   # the predicted run below the measured one
  dptrace whatif runs/ddp --bucket-cap-mb 1,5,25,100 -o caps.svg
"""


@click.command(epilog=_EXAMPLES)
@run_options
@change_options
@answer_options("html", "svg", "png", csv="Print a CSV row for each rank and figure (times in ns).")
@click.option(
    "--export",
    type=OutputFile(),
    metavar="FILE",
    help="Write the predicted run for Perfetto or Chrome, as dptrace export.",
)
@click.option("--all", "every", is_flag=True, help="Print every rank.")
@opening_options
def command(
    paths: tuple[str, ...],
    selection: Selection,
    different: ChangeOptions,
    to: Destination,
    export: Path | None,
    every: bool,
    read_options: ReadOptions,
    verbosity: str,
) -> None:
    """Predict what a step of RUN would take if something were different, by replaying it.

    --schedule is when gradients are reduced: after backward (naive), each when it is ready (interleaved), in DDP's
    buckets (ddp), or in buckets that the optimizer takes as they come (overlap-optimizer). --world-size keeps the batch
    of each rank. --compress all_to_all=fp16 is about messages of one kind.

    A replay starts each call, kernel and collective as soon as what it waits for has happened. Every answer comes with
    the error of the replay of the unchanged run, with a range, and with the reasons to doubt it. Several changes apply
    together. Without any change, the run is replayed as recorded.
    """
    _check(to, export)
    changes, swept = different.parsed(), different.swept()
    check_changes(changes, swept)
    if swept is None and to.form in ("svg", "png"):
        raise UsageError(f"{to.output}: a chart compares several values, for example --bucket-cap-mb 1,4,25.")
    if swept is not None and (to.form == "csv" or export is not None):
        raise UsageError("Several values are printed as text, --json, a page or a chart: leave --csv and --export out.")
    run = open_with_progress(paths, read_options, verbosity, selection)
    if swept is not None:
        to.write(_sweep_answer(_swept(run, changes, *swept, verbosity)))
        print_notes(run.notes)
        return
    with progress("Replaying", verbosity, measured=False):
        answer = run.whatif(**changes)
    to.write(_answer(run, answer, every))
    print_notes(run.notes)
    if export is not None:
        _export(answer, export, verbosity, to.force)
    elif to.on_terminal:
        print_hint(f"Next: dptrace critical-path {quoted_paths(paths)}", verbosity)


def _check(to: Destination, export: Path | None) -> None:
    """Refuse a file of the predicted run that would be overwritten or has no fitting name, before a long read."""
    if export is not None:
        from dptrace.export.formats import format_of

        if to.output == export:
            raise UsageError(f"{export} can't be both the answer and the predicted run: name two files.")
        check_output(export, to.force)
        format_of(export)


def _swept(run: Run, changes: dict[str, Any], name: str, values: list[float], verbosity: str) -> Sweep:
    """Predict the run for each value of an option."""
    from dptrace.replay.whatif import Sweep

    distinct = sorted(set(values))
    option, answers = name.replace("_", "-"), list[Any]()
    with progress("Replaying", verbosity) as show:
        for number, value in enumerate(distinct):
            show(number / len(distinct), f"{option} {value:g}")
            answers.append(run.whatif(**{**changes, name: value}))
    return Sweep.of(option, distinct, answers)


def _sweep_answer(sweep: Sweep) -> Answer:
    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.replay.whatif_sweep import print_sweep

        print_sweep(sweep, console)

    def page() -> str:
        from dptrace.viewers.pages.whatif_sweep import document

        return document(sweep)

    def chart() -> Drawing:
        from dptrace.viewers.pages.whatif_sweep import sweep_chart

        return sweep_chart(sweep)

    return Answer(tables, sweep.to_dict, page=page, chart=chart, picture_width=_SWEEP_WIDTH)


def _answer(run: Run, answer: WhatIf, every: bool) -> Answer:
    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.replay.whatif import print_whatif

        print_whatif(answer, console, every)

    def page() -> str:
        """Draw the predicted run below the measured one."""
        from dptrace.viewers.gantt.pair.page import document
        from dptrace.viewers.terminal.replay.whatif import sentence

        return document(run, answer.run, verdict=(sentence(answer).plain, *(doubt.text for doubt in answer.doubts)))

    return Answer(tables, answer.to_dict, answer.figures, page)


def _export(answer: WhatIf, path: Path, verbosity: str, force: bool) -> None:
    from dptrace.api import export_trace

    export_trace(answer.run, path, force=force)
    print_hint(f"Wrote {path}: the predicted run. Open it at https://ui.perfetto.dev.", verbosity)
