"""``dptrace whatif``: what a step would take if something were different."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.options import (
    Selection,
    field_of,
    group,
    json_option,
    opening_options,
    output_option,
    run_options,
)
from dptrace.commands.shared.output import (
    OutputFile,
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
    from dptrace.replay.whatif import WhatIf


@dataclass(frozen=True)
class _Different:
    """What is different, as it was typed."""

    compute: str | None = None
    bandwidth: str | None = None
    kernel: tuple[str, ...] = ()
    straggler: tuple[str, ...] = ()
    no_straggler: bool = False
    no_host_delay: bool = False
    perfect_overlap: bool = False

    def parsed(self) -> dict[str, Any]:
        """Return the options of :meth:`dptrace.Run.whatif`."""
        from dptrace.replay.options import parse_factor, parse_kernel, parse_straggler

        return {
            "compute": parse_factor(self.compute, "--compute") if self.compute else None,
            "bandwidth": parse_factor(self.bandwidth, "--bandwidth") if self.bandwidth else None,
            "kernels": dict(map(parse_kernel, self.kernel)),
            "straggler": dict(map(parse_straggler, self.straggler)),
            "no_straggler": self.no_straggler,
            "no_host_delay": self.no_host_delay,
            "perfect_overlap": self.perfect_overlap,
        }


_DIFFERENT = field_of("different", _Different())
_SWITCH: dict[str, Any] = {"is_flag": True, **_DIFFERENT}
different_options = group(
    click.option("--no-straggler", help="Between collectives, no rank is slower than the median one.", **_SWITCH),
    click.option(
        "--straggler",
        multiple=True,
        metavar="RANK=TIME",
        help="The host of a rank is late in each step: 2=20ms. May be given several times.",
        **_DIFFERENT,
    ),
    click.option("--compute", metavar="FACTOR", help="Compute is faster: 2x takes half the time.", **_DIFFERENT),
    click.option(
        "--bandwidth", metavar="FACTOR", help="Links are faster: 2x moves bytes in half the time.", **_DIFFERENT
    ),
    click.option(
        "--kernel",
        multiple=True,
        metavar="REGEX=FACTOR",
        help="Kernels with a matching name take this share of their time: gemm=0.5x. May be given several times.",
        **_DIFFERENT,
    ),
    click.option("--no-host-delay", help="The host takes no time: calls and Python between them.", **_SWITCH),
    click.option("--perfect-overlap", help="Nothing waits for a collective.", **_SWITCH),
)


@click.command()
@run_options
@different_options
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
    different: _Different,
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

    A replay starts each call, kernel and collective as soon as what it waits for has happened. Every answer comes with
    the error of the replay of the unchanged run, with a range, and with the reasons to doubt it. Several changes apply
    together. Without any, the run is replayed as it was.

    \b
    Examples:
      dptrace whatif runs/ddp                                  # how well it is replayed
      dptrace whatif runs/ddp --no-straggler
      dptrace whatif runs/ddp --bandwidth 2x --compute 1.5x --json
      dptrace whatif runs/ddp --kernel 'flash_bwd=0.5x' --export predicted.pftrace
    """
    _check(output, export, as_json, as_csv, force)
    changes = different.parsed()
    run = open_with_progress(paths, read_options, verbosity, selection)
    with progress("Replaying", verbosity, measured=False):
        answer = run.whatif(**changes)
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
    if as_json and as_csv:
        raise UsageError("Choose one of --json and --csv.")
    for path in (output, export):
        if path is not None:
            check_output(path, force)
    if output is not None and output == export:
        raise UsageError(f"{output} can't be both the answer and the predicted run: name two files.")
    if output is not None and output.suffix in (".json", ".csv") and not (as_json or as_csv):
        raise UsageError(f"{output} would hold tables; add --{output.suffix[1:]}, or name it .txt.")
    if export is not None:
        from dptrace.export.formats import format_of

        format_of(export)


def _print(answer: WhatIf, output: Path | None, as_json: bool, as_csv: bool, every: bool) -> None:
    if as_json:
        emit(json_text(answer.to_dict()), output)
    elif as_csv:
        emit(csv_text(answer.figures()), output)
    else:
        from dptrace.viewers.terminal.whatif import print_whatif

        print_tables(lambda console: print_whatif(answer, console, every), output)


def _export(answer: WhatIf, path: Path, verbosity: str, force: bool) -> None:
    from dptrace.api import export_trace

    export_trace(answer.run, path, force=force)
    print_hint(f"Wrote {path}: the predicted run. Open it at https://ui.perfetto.dev.", verbosity)
