"""``dptrace whatif``: what a step would take if something were different."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.answer import Answer, Destination, answer_options
from dptrace.commands.shared.numbers import Whole
from dptrace.commands.shared.options import Selection, field_of, group, opening_options, run_options
from dptrace.commands.shared.output import OutputFile, print_hint, print_notes, progress, quoted_paths
from dptrace.commands.shared.reading import open_with_progress
from dptrace.core.files import check_output
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.replay.whatif import Sweep, WhatIf
    from dptrace.run.run import Run
    from dptrace.viewers.base.marks import Drawing

__all__ = ["ChangeOptions"]


# The options of ``dptrace whatif`` that say what is different.


_AS_TYPED = ("latency", "link", "compress", "schedule", "accumulate", "fuse", "cuda_graphs", "no_recompute")


@dataclass(frozen=True)
class ChangeOptions:
    """What is different, as it was typed."""

    compute: str | None = None
    bandwidth: str | None = None
    kernel: tuple[str, ...] = ()
    straggler: tuple[str, ...] = ()
    no_straggler: bool = False
    no_host_delay: bool = False
    perfect_overlap: bool = False
    latency: str | None = None
    link: str | None = None
    compress: str | None = None
    world_size: str | None = None
    bucket_cap_mb: str | None = None
    schedule: str | None = None
    accumulate: int | None = None
    fuse: str | None = None
    cuda_graphs: bool = False
    no_recompute: bool = False

    def swept(self) -> tuple[str, list[float]] | None:
        """Return the option that has several values, and these; None without one.

        Raises:
            UsageError: two options have several values, or a value is no number.
        """
        several = {name: self._values(name) for name in ("world_size", "bucket_cap_mb")}
        several = {name: values for name, values in several.items() if len(values) > 1}
        if len(several) > 1:
            raise UsageError("--world-size and --bucket-cap-mb have several values each: sweep one of them.")
        return next(iter(several.items()), None)

    def _values(self, name: str) -> list[float]:
        text = getattr(self, name)
        if text is None:
            return []
        number = int if name == "world_size" else float
        try:
            return [number(part) for part in text.split(",")]
        except ValueError:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} {text}: expected a number, or several with commas: 1,4,25.") from None

    def parsed(self) -> dict[str, Any]:
        """Return the options of :meth:`dptrace.Run.whatif`; of an option with several values, the first."""
        from dptrace.replay.options import parse_bandwidth, parse_factor, parse_kernel, parse_straggler

        world, caps = self._values("world_size"), self._values("bucket_cap_mb")
        return {
            **{name: getattr(self, name) for name in _AS_TYPED},
            "world_size": int(world[0]) if world else None,
            "bucket_cap_mb": caps[0] if caps else None,
            "compute": None if self.compute is None else parse_factor(self.compute, "--compute"),
            "bandwidth": None if self.bandwidth is None else parse_bandwidth(self.bandwidth),
            "kernels": _once(map(parse_kernel, self.kernel), "--kernel"),
            "straggler": _once(map(parse_straggler, self.straggler), "--straggler"),
            "no_straggler": self.no_straggler,
            "no_host_delay": self.no_host_delay,
            "perfect_overlap": self.perfect_overlap,
        }


def _once(pairs: Iterable[tuple[Any, Any]], option: str) -> dict[Any, Any]:
    """Return what is given for each name.

    Raises:
        UsageError: a name is given twice.
    """
    found: dict[Any, Any] = {}
    for name, value in pairs:
        if name in found:
            raise UsageError(f"{option} {name}: is given twice; leave one out.")
        found[name] = value
    return found


def check_changes(changes: dict[str, Any], swept: tuple[str, list[float]] | None) -> None:
    """Refuse changes that no run can have, before a long read.

    Raises:
        UsageError: a value is out of range, or a pattern is no regular expression.
        DptraceError: a file of links can't be read.
    """
    from dptrace.bench.links import with_measured_link
    from dptrace.replay.options import changes_of

    name, values = swept or ("link", [changes["link"]])
    for value in values:
        changes_of(**with_measured_link({**changes, name: value}))


_DIFFERENT = field_of("different", ChangeOptions())
_SWITCH: dict[str, Any] = {"is_flag": True, **_DIFFERENT}
change_options = group(
    click.option("--no-straggler", help="Between collectives, no rank is slower than the median one.", **_SWITCH),
    click.option(
        "--straggler",
        multiple=True,
        metavar="RANK=TIME",
        help="The host of a rank is late in each step: 2=20ms; repeatable.",
        **_DIFFERENT,
    ),
    click.option("--compute", metavar="FACTOR", help="Compute is faster: 2x takes half the time.", **_DIFFERENT),
    click.option(
        "--bandwidth",
        metavar="FACTOR|RATE",
        help="Links are faster: 2x, or move 25GBps in one direction.",
        **_DIFFERENT,
    ),
    click.option(
        "--latency", metavar="FACTOR|TIME", help="Latency of a link: 0.5x of what it is, or 5us.", **_DIFFERENT
    ),
    click.option(
        "--link",
        metavar="NAME|FILE",
        help="Other links: nvlink4, ib-ndr …, 5us:12.5GB/s, or a file of dptrace links.",
        **_DIFFERENT,
    ),
    click.option(
        "--world-size",
        metavar="N[,N…]",
        help="Other numbers of data-parallel ranks; for a recording of one rank, add --link.",
        **_DIFFERENT,
    ),
    click.option(
        "--bucket-cap-mb",
        metavar="MB[,MB…]",
        help="Size of DDP's buckets in MiB; several values are compared.",
        **_DIFFERENT,
    ),
    click.option(
        "--schedule",
        type=click.Choice(["naive", "interleaved", "ddp", "overlap-optimizer"]),
        metavar="NAME",
        help="When gradients are reduced: naive, interleaved, ddp or overlap-optimizer.",
        **_DIFFERENT,
    ),
    click.option(
        "--compress",
        metavar="TYPE|KIND=TYPE",
        help="Messages, or those of a kind, are in fp16, bf16, fp8, int8 or int4.",
        **_DIFFERENT,
    ),
    click.option(
        "--accumulate",
        type=Whole(),
        metavar="K",
        help="K micro-steps for one all-reduce and one step of the optimizer.",
        **_DIFFERENT,
    ),
    click.option(
        "--kernel",
        multiple=True,
        metavar="REGEX=FACTOR",
        help="Matching kernels take this share of their time: gemm=0.5x; repeatable.",
        **_DIFFERENT,
    ),
    click.option(
        "--fuse",
        metavar="REGEX",
        help="Neighboring kernels with matching names are one, as long as the longest.",
        **_DIFFERENT,
    ),
    click.option("--cuda-graphs", help="The kernels of a step are launched at once.", **_SWITCH),
    click.option("--no-recompute", help="Backward recomputes nothing of forward.", **_SWITCH),
    click.option("--no-host-delay", help="The host takes no time: calls and Python between them.", **_SWITCH),
    click.option("--perfect-overlap", help="Nothing waits for a collective.", **_SWITCH),
)


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
    from dptrace.api import whatif

    with progress("Replaying", verbosity, measured=False):
        answer = whatif(run, **changes)
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
    from dptrace.api import whatif
    from dptrace.replay.whatif import Sweep

    distinct = sorted(set(values))
    option, answers = name.replace("_", "-"), list[Any]()
    with progress("Replaying", verbosity) as show:
        for number, value in enumerate(distinct):
            show(number / len(distinct), f"{option} {value:g}")
            answers.append(whatif(run, **{**changes, name: value}))
    return Sweep.of(option, distinct, answers)


def _sweep_answer(sweep: Sweep) -> Answer:
    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.replay import print_sweep

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
        from dptrace.viewers.terminal.replay import print_whatif

        print_whatif(answer, console, every)

    def page() -> str:
        """Draw the predicted run below the measured one."""
        from dptrace.viewers.gantt.page.pair import document
        from dptrace.viewers.terminal.replay import sentence

        return document(run, answer.run, verdict=(sentence(answer).plain, *(doubt.text for doubt in answer.doubts)))

    return Answer(tables, answer.to_dict, answer.figures, page)


def _export(answer: WhatIf, path: Path, verbosity: str, force: bool) -> None:
    from dptrace.api import export_trace

    export_trace(answer.run, path, force=force)
    print_hint(f"Wrote {path}: the predicted run. Open it at https://ui.perfetto.dev.", verbosity)
