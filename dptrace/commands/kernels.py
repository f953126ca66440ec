"""``dptrace kernels``: what the devices compute, by kernel, operator, shape, module, annotation or phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dptrace.commands.shared.answer import CSV, JSON, TEXT, Answer, Destination, answer_options, refuse
from dptrace.commands.shared.numbers import Amount, Whole
from dptrace.commands.shared.options import Selection, opening_options, run_options, with_workload
from dptrace.commands.shared.output import print_notes, progress
from dptrace.commands.shared.reading import open_to_find, with_findings
from dptrace.core.numbers import AMOUNT
from dptrace.core.patterns import compiled
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.analysis.kernels.summary import KernelSummary
    from dptrace.run.run import Run

_SCHEMA = 2
"""Version of the JSON: the meaning of a name in it never changes."""
_MAX_ROWS = 30
"""Rows that the terminal shows unless --top asks for more."""
_BY = ("kernel", "operator", "operator-shape", "module", "layer", "source", "annotation", "phase", "host")
_KINDS = ("compute", "communication", "memory", "all")
_SORTS = ("total", "self", "count", "mean", "p95", "delay", "tflops")
_SORTS_OF_HOST = ("self", "total", "count", "mean")
_ROWS = f"{', '.join(_BY[:-1])} or {_BY[-1]}."
_KIND = f"Only {', '.join(_KINDS[:-1])}, or {_KINDS[-1]}. [all]"
_PEAK = "Dense peak of one GPU in TFLOP/s, if it is not known."
_BOTH_NAMES = "--json and --csv have both the short and the full names; leave --full-names out."
_PROVENANCE = "For --by source: the folder of TORCH_TRACE, with INDUCTOR_PROVENANCE=1."
_NOTHING_TO_FIND = "--csv and --by host have no findings; leave --no-findings out."
_SORT = f"By {', '.join(_SORTS[:-1])} or {_SORTS[-1]}. [total; with --by host: self]"


@click.command()
@run_options
@click.option("--by", type=click.Choice(_BY), default="kernel", metavar="WHAT", help=_ROWS)
@click.option("--kind", type=click.Choice(_KINDS), default="all", metavar="KIND", help=_KIND)
@click.option("--per-rank", is_flag=True, help="Print separate rows for each rank.")
@click.option("--match", metavar="REGEX", help="Only rows whose name matches, in any part and case.")
@click.option("--sort", type=click.Choice(_SORTS), metavar="ORDER", help=_SORT)
@click.option("--top", type=Whole(1), metavar="N", help="Only the first N rows. [terminal: 30; else all]")
@click.option("--full-names", is_flag=True, help="Print kernel names whole, with template arguments and parameters.")
@click.option("--no-findings", "findings", flag_value=False, default=True, help="Do not look for what slows compute.")
@click.option("--provenance", metavar="FOLDER", type=click.Path(path_type=Path), help=_PROVENANCE)
@click.option("--peak-tflops", type=Amount(AMOUNT), metavar="N", help=_PEAK)
@answer_options(csv="Print a CSV row for each row of the table (times in ns).")
@opening_options
def command(
    paths: tuple[str, ...],
    selection: Selection,
    by: str,
    kind: str,
    per_rank: bool,
    match: str | None,
    sort: str | None,
    top: int | None,
    full_names: bool,
    findings: bool,
    provenance: Path | None,
    peak_tflops: float | None,
    to: Destination,
    read_options: ReadOptions,
    verbosity: str,
) -> None:
    """List what the devices of RUN compute: kernels, or --by something else: operators, modules, source lines, phases.

    A kernel belongs to the operator and module that launched it; in backward, to those of the forward operator. Rows
    add up to the time of all intervals exactly; on a CPU they are operators, each without the operators inside it.
    FLOPs need shapes, which `dptrace record` records unless --light or --no-shapes leaves them out.

    Findings say what makes compute slower than it could be, what a step would gain without it, and what to do about it.
    --by source adds up the kernels of torch.compile by the lines of the model that they compute. --by host lists the
    other side: the time of the threads that launch, how far they run ahead, and the calls in which they wait.

    \b
    Examples:
      dptrace kernels runs/ddp
      dptrace kernels runs/ddp --by operator-shape --sort tflops
      dptrace kernels runs/ddp --by module --match 'layers\\.3'
      dptrace kernels runs/compiled --by source --provenance torch_trace
      dptrace kernels runs/ddp --by kernel --kind communication --per-rank --csv > nccl.csv
    """
    from dptrace.run.kernels import kernel_summary

    looks_for_findings = findings and not to.only(CSV) and by != "host"
    refuse(
        (
            (full_names and not to.as_text, _BOTH_NAMES),
            *_wrong_rows(by, kind, sort, peak_tflops, provenance),
            (not findings and (to.only(CSV) or by == "host"), _NOTHING_TO_FIND),
        )
    )
    compiled(match or "", "--match")
    read_options = replace(read_options, operators=by not in ("kernel", "phase") or looks_for_findings)
    run = open_to_find(paths, read_options, verbosity, selection, looks_for_findings)
    run = with_workload(run, peak_tflops=peak_tflops)
    run = with_findings(run, verbosity, compute=True) if looks_for_findings else run
    with progress("Summing up", verbosity, measured=False):
        if by == "host":
            answer = _host_answer(run, per_rank, match, sort, top)
        else:
            summary = kernel_summary(run, by, kind, per_rank, provenance)
            answer = _kernel_answer(run, summary, match, sort, looks_for_findings, kind, full_names, top)
    to.write(answer)
    print_notes(run.notes)


def _wrong_rows(
    by: str, kind: str, sort: str | None, peak_tflops: float | None, provenance: Path | None
) -> Iterator[tuple[bool, str]]:
    """Yield which options fit no row of such a table, and what to do instead."""
    from dptrace.run.kernels import NEEDS_PROVENANCE

    of_host, of_shapes = by == "host", by == "operator-shape"
    orders = ", ".join(_SORTS_OF_HOST)
    yield (
        of_host and (kind != "all" or (sort or "self") not in _SORTS_OF_HOST),
        f"--by host lists calls of the host: leave --kind out, and sort by {orders}.",
    )
    yield sort == "self" and not of_host, "--sort self needs --by host."
    yield sort == "tflops" and not of_shapes, "--sort tflops needs --by operator-shape."
    yield by == "source" and provenance is None, f"{NEEDS_PROVENANCE}: --by source --provenance FOLDER."
    yield by != "source" and provenance is not None, "--provenance is for rows by source; add --by source."
    yield peak_tflops is not None and not of_shapes, "--peak-tflops needs --by operator-shape."


def _kernel_answer(
    run: Run,
    summary: KernelSummary,
    match: str | None,
    sort: str | None,
    looks_for_findings: bool,
    kind: str,
    full_names: bool,
    top: int | None,
) -> Answer:
    from dptrace.replay.findings import compute_findings_of
    from dptrace.run.kernels import flat_frame, select_rows

    rows = select_rows(summary.rows, match, sort or "total", top)
    found = compute_findings_of(run) if looks_for_findings else None

    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.kernels import print_kernels

        print_kernels(summary, rows, console, full_names, top or _MAX_ROWS, found or (), on_cpu=run.on_cpu)

    head = {"schema": _SCHEMA, "run": run.path, "by": summary.by, "kind": kind, "ranks": summary.ranks}
    head |= {"wall_ns": summary.wall_ns, "totals": summary.totals, "notes": list(run.notes)}
    head |= {"flops": summary.flops.to_dict()} if summary.flops is not None else {}
    head |= {"findings": [finding.to_dict() for finding in found]} if found is not None else {}
    return Answer({TEXT: tables, JSON: lambda: {**head, "rows": rows}, CSV: lambda: flat_frame(rows)})


def _host_answer(run: Run, per_rank: bool, match: str | None, sort: str | None, top: int | None) -> Answer:
    from dptrace.run.kernels import flat_frame, launch_table, select_rows

    rows, figures = launch_table(run, per_rank)
    rows = select_rows(rows, match, sort or "self", top)

    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.kernels import print_host

        print_host(rows, figures, console, top or _MAX_ROWS)

    head = {"schema": _SCHEMA, "run": run.path, "by": "host", "ranks": list(run.ranks), "launch": figures}
    head |= {"notes": list(run.notes), "rows": rows}
    return Answer({TEXT: tables, JSON: lambda: head, CSV: lambda: flat_frame(rows)})
