"""``dptrace kernels``: what the devices compute, by kernel, operator, shape, module, annotation or phase."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.answer import Answer, Destination, answer_options
from dptrace.commands.shared.numbers import Amount, Whole
from dptrace.commands.shared.options import Selection, gains_option, opening_options, run_options, with_workload
from dptrace.commands.shared.output import print_notes
from dptrace.commands.shared.reading import gains_wanted, open_with_progress, with_gains
from dptrace.core.numbers import AMOUNT
from dptrace.core.patterns import compiled
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.run.run import Run

_SCHEMA = 1
"""Version of the JSON: the meaning of a name in it never changes."""
_MOST_ROWS = 30
"""Rows that the terminal shows unless --top asks for more."""
_BY = ("kernel", "operator", "operator-shape", "module", "layer", "annotation", "phase", "host")
_KINDS = ("compute", "communication", "memory", "all")
_SORTS = ("total", "self", "count", "mean", "p95", "delay", "tflops")
_SORTS_OF_HOST = ("self", "total", "count", "mean")
_ROWS = f"{_BY[0]} (default), {', '.join(_BY[1:-1])} or {_BY[-1]}."
_KIND = f"Only {', '.join(_KINDS[:-1])}, or {_KINDS[-1]}. [all]"
_PEAK = "Dense peak of one GPU in TFLOP/s, if it is not known."
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
@gains_option
@click.option("--peak-tflops", type=Amount(AMOUNT), metavar="N", help=_PEAK)
@answer_options(csv="Print a CSV row for each row of the table (times in ns).")
@opening_options
def command(
    paths: tuple[str, ...],
    selection: Selection,
    read_options: ReadOptions,
    to: Destination,
    verbosity: str,
    **shown: Any,
) -> None:
    """List what the devices of RUN compute: kernels, operators with their shapes, modules, annotations, phases.

    A kernel belongs to the operator and module that launched it; in backward, to those of the forward operator that it
    differentiates. Rows add up to the time of all intervals exactly; on a CPU they are operators, with the time in
    which no operator inside them ran. FLOPs need shapes, which `dptrace record --shapes` records.

    Findings say what makes compute slower than it could be, what a step would gain without it, and what to do about it.

    --by host lists the other side: the time of the threads that launch, how far they run ahead of the device, and the
    calls in which they wait for it.

    \b
    Examples:
      dptrace kernels runs/ddp
      dptrace kernels runs/ddp --by operator-shape --sort tflops
      dptrace kernels runs/ddp --by layer
      dptrace kernels runs/ddp --by module --match 'layers\\.3'
      dptrace kernels runs/ddp --by kernel --kind communication --per-rank --csv > nccl.csv
    """
    options = _Options(to=to, **shown)
    options.check()
    read_options = replace(read_options, operators=options.by not in ("kernel", "phase") or options.looks_for_findings)
    run = with_workload(open_with_progress(paths, read_options, verbosity, selection), peak_tflops=options.peak_tflops)
    if options.by == "host":
        to.write(_host_answer(run, options))
    else:
        wanted = options.looks_for_findings and gains_wanted(options.gains, paths)
        to.write(_kernel_answer(with_gains(run, verbosity) if wanted else run, options))
    print_notes(run.notes)


def _kernel_answer(run: Run, options: _Options) -> Answer:
    from dptrace.run.kernels import compute_findings_of, flat_frame, kernel_summary, select_rows

    summary = kernel_summary(run, options.by, options.kind, options.per_rank)
    rows = select_rows(summary.rows, options.match, options.sort or "total", options.top)
    found = compute_findings_of(run) if options.looks_for_findings else None

    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.kernels import print_kernels

        most = options.top or _MOST_ROWS
        print_kernels(summary, rows, console, options.full_names, most, found or (), on_cpu=run.on_cpu)

    def data() -> object:
        head: dict[str, Any] = {
            "schema": _SCHEMA,
            "run": run.path,
            "by": summary.by,
            "kind": options.kind,
            "ranks": summary.ranks,
        }
        head |= {"wall_ns": summary.wall_ns, "totals": summary.totals, "notes": list(run.notes)}
        head |= {"flops": summary.flops.to_dict()} if summary.flops is not None else {}
        head |= {"findings": [finding.to_dict() for finding in found]} if found is not None else {}
        return {**head, "rows": rows}

    return Answer(tables, data, lambda: flat_frame(rows))


def _host_answer(run: Run, options: _Options) -> Answer:
    from dptrace.run.kernels import flat_frame, launch_table, select_rows

    rows, figures = launch_table(run, options.per_rank)
    rows = select_rows(rows, options.match, options.sort or "self", options.top)

    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.kernels import print_host

        print_host(rows, figures, console, options.top or _MOST_ROWS)

    def data() -> object:
        head = {"schema": _SCHEMA, "run": run.path, "by": "host", "ranks": list(run.ranks), "launch": figures}
        return {**head, "notes": list(run.notes), "rows": rows}

    return Answer(tables, data, lambda: flat_frame(rows))


@dataclass(frozen=True)
class _Options:
    """What to list, and where."""

    to: Destination
    by: str
    kind: str
    per_rank: bool
    match: str | None
    sort: str | None
    top: int | None
    full_names: bool
    findings: bool
    gains: bool | None
    peak_tflops: float | None

    @property
    def looks_for_findings(self) -> bool:
        """Whether findings are computed; CSV has rows only, and --by host lists another side."""
        return self.findings and self.to.form != "csv" and self.by != "host"

    def check(self) -> None:
        """Refuse options that would be ignored, and a pattern that is none."""
        if self.full_names and not self.to.as_text:
            raise UsageError("--json and --csv have both the short and the full names; leave --full-names out.")
        if self.by == "host" and (self.kind != "all" or (self.sort or "self") not in _SORTS_OF_HOST):
            orders = ", ".join(_SORTS_OF_HOST)
            raise UsageError(f"--by host lists calls of the host: leave --kind out, and sort by {orders}.")
        self._check_findings()
        if self.sort == "self" and self.by != "host":
            raise UsageError("--sort self needs --by host.")
        if self.sort == "tflops" and self.by != "operator-shape":
            raise UsageError("--sort tflops needs --by operator-shape.")
        if self.peak_tflops is not None and self.by != "operator-shape":
            raise UsageError("--peak-tflops needs --by operator-shape.")
        compiled(self.match or "", "--match")

    def _check_findings(self) -> None:
        if not self.findings and (self.to.form == "csv" or self.by == "host"):
            raise UsageError("--csv and --by host have no findings; leave --no-findings out.")
        if self.gains and not self.looks_for_findings:
            raise UsageError("--gains is about findings, which --csv, --by host and --no-findings leave out.")
