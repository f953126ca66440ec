"""``dptrace whatif``: what a step would take if something were different."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.replaying.sweep_output import write_sweep
from dptrace.commands.replaying.whatif_options import ChangeOptions, change_options, check_changes
from dptrace.commands.shared.options import (
    Selection,
    json_option,
    opening_options,
    output_option,
    run_options,
)
from dptrace.commands.shared.output import (
    OutputFile,
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
from dptrace.core.files import check_output
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from dptrace.replay.sweep import Sweep
    from dptrace.replay.whatif import WhatIf
    from dptrace.run.run import Run

_PAGES, _PICTURES = (".html",), (".svg", ".png")


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
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print a CSV row for each rank and figure (times in ns).")
@click.option(
    "--export",
    type=OutputFile(),
    metavar="FILE",
    help="Write the predicted run for Perfetto or Chrome, as dptrace export.",
)
@click.option("--all", "every", is_flag=True, help="Print every rank.")
@output_option
@opening_options
def command(
    paths: tuple[str, ...],
    selection: Selection,
    different: ChangeOptions,
    as_json: bool,
    as_csv: bool,
    export: Path | None,
    every: bool,
    output: Path | None,
    force: bool,
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
    _check(output, export, as_json, as_csv, force)
    changes, swept = different.parsed(), different.swept()
    check_changes(changes, swept)
    if swept is None and output is not None and output.suffix in _PICTURES:
        raise UsageError(f"{output}: a chart compares several values, for example --bucket-cap-mb 1,4,25.")
    if swept is not None and (as_csv or export is not None):
        raise UsageError("Several values are printed as text, --json, a page or a chart: leave --csv and --export out.")
    run = open_with_progress(paths, read_options, verbosity, selection)
    if swept is not None:
        write_sweep(_swept(run, changes, *swept, verbosity), output, as_json, verbosity)
        print_notes(run.notes)
        return
    with progress("Replaying", verbosity, measured=False):
        answer = run.whatif(**changes)
    if output is not None and output.suffix in _PAGES:
        _write_page(run, answer, output, verbosity)
        output = None
    _print(answer, output, as_json, as_csv, every)
    print_notes(run.notes)
    if export is not None:
        _export(answer, export, verbosity, force)
    elif output is None and not (as_json or as_csv):
        print_hint(f"Next: dptrace critical-path {quoted_paths(paths)}", verbosity)
    if output is not None:
        print_hint(f"Wrote {output}.", verbosity)


def _check(output: Path | None, export: Path | None, as_json: bool, as_csv: bool, force: bool) -> None:
    """Refuse files that would be overwritten or hold something else than their names say, before a long read."""
    if output is not None and output == export:
        raise UsageError(f"{output} can't be both the answer and the predicted run: name two files.")
    check_answer(output, force, as_json, as_csv, (*_PAGES, *_PICTURES))
    if export is not None:
        check_output(export, force)
        from dptrace.export.formats import format_of

        format_of(export)


def _swept(run: Run, changes: dict[str, Any], name: str, values: list[float], verbosity: str) -> Sweep:
    """Predict the run for each value of an option."""
    from dptrace.replay.sweep import Sweep

    distinct = sorted(set(values))
    option, answers = name.replace("_", "-"), list[Any]()
    with progress("Replaying", verbosity) as show:
        for number, value in enumerate(distinct):
            show(number / len(distinct), f"{option} {value:g}")
            answers.append(run.whatif(**{**changes, name: value}))
    return Sweep.of(option, distinct, answers)


def _write_page(run: Run, answer: WhatIf, output: Path, verbosity: str) -> None:
    """Draw the predicted run below the measured one."""
    from dptrace.commands.shared.pages import write_page
    from dptrace.viewers.gantt.pair.page import document
    from dptrace.viewers.terminal.replay.whatif import sentence

    verdict = (sentence(answer).plain, *(doubt.text for doubt in answer.doubts))
    write_page(output, lambda: document(run, answer.run, verdict=verdict), verbosity)


def _print(answer: WhatIf, output: Path | None, as_json: bool, as_csv: bool, every: bool) -> None:
    if as_json:
        emit(json_text(answer.to_dict()), output)
    elif as_csv:
        emit(csv_text(answer.figures()), output)
    else:
        from dptrace.viewers.terminal.replay.whatif import print_whatif

        print_tables(lambda console: print_whatif(answer, console, every), output)


def _export(answer: WhatIf, path: Path, verbosity: str, force: bool) -> None:
    from dptrace.api import export_trace

    export_trace(answer.run, path, force=force)
    print_hint(f"Wrote {path}: the predicted run. Open it at https://ui.perfetto.dev.", verbosity)
