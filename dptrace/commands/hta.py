"""``dptrace hta``: the analyses of Holistic Trace Analysis, on dptrace's reader."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.answer import Answer, Destination, answer_options, check_file
from dptrace.commands.shared.numbers import NumberType, Whole
from dptrace.commands.shared.options import RenamedOption, group, quiet_option, strict_option
from dptrace.commands.shared.output import OutputFile, print_hint, print_notes, progress
from dptrace.core.patterns import compiled
from dptrace.core.units import sanitize
from dptrace.errors import UsageError
from dptrace.hta.options import ANALYSES, Options
from dptrace.run.selection import ranks_of

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.hta.analyses import Result

_COMMON_OPTIONS = ("ranks", "include_last_step", "rounding")


def _list(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        width = max(map(len, ANALYSES))
        for name, description in ANALYSES.items():
            click.echo(f"{name:{width}}  {description.summary}")
        ctx.exit()


def _instance(text: str) -> tuple[int, int]:
    """Parse N or A:B, counted from 0."""
    first, _, last = text.partition(":")
    if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
        raise click.BadParameter(f"{text!r} is neither a number nor a range such as 1:3.")
    return int(first), int(last or first)


def _ranks(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(sorted({rank for value in values for rank in ranks_of(value)}))


_MANY: dict[str, Any] = {"multiple": True, "type": Whole(), "metavar": "N"}
_NUMBER: dict[str, Any] = {"type": Whole(0), "metavar": "N"}
_SHARE: dict[str, Any] = {"type": NumberType(0, 1), "metavar": "SHARE"}
_SWITCH: dict[str, Any] = {"flag_value": True, "default": None}
_OFF: dict[str, Any] = {"flag_value": False, "default": None}
# Options of the analyses. None has a default, so that HTA's own applies.
_OPTIONS = (
    click.option(
        "--ranks",
        cls=RenamedOption,
        old_name="--rank",
        multiple=True,
        metavar="LIST",
        callback=_ranks,
        help="Only these ranks: 0,1 or 0-3.",
    ),
    click.option("--include-last-step", help="Keep the last step, which HTA drops.", **_SWITCH),
    click.option("--no-rounding", "rounding", help="Keep fractions of µs, which HTA rounds.", **_OFF),
    click.option("--against", multiple=True, type=click.Path(), metavar="RUN2", help="Second run (trace-diff)."),
    click.option("--against-rank", "against_ranks", help="Ranks of the second run (trace-diff).", **_MANY),
    click.option("--iteration", "iterations", help="Steps to compare [the first] (trace-diff).", **_MANY),
    click.option("--against-iteration", "against_iterations", help="Steps of the second run (trace-diff).", **_MANY),
    click.option("--device", type=click.Choice(["cpu", "gpu", "all"]), help="What to compare (trace-diff)."),
    click.option("--short-names", help="Names without arguments (trace-diff).", **_SWITCH),
    click.option("--annotation", metavar="TEXT", help="Annotation to analyze [ProfilerStep] (critical-path)."),
    click.option("--instance", metavar="N[:M]", type=_instance, help="Which of them, from 0 [0] (critical-path)."),
    click.option("--data-loading", multiple=True, metavar="REGEX", help="CPU events that load data (critical-path)."),
    click.option("--operator", metavar="NAME", help="Operator whose kernels to analyze (frequent-sequences)."),
    click.option("--min-length", help="Shortest sequence [3] (frequent-sequences).", **_NUMBER),
    click.option("--top", help="How many to draw and overlay [5] (frequent-sequences).", **_NUMBER),
    click.option(
        "--overlay", metavar="DIR", help="Also write the trace with the result in it (critical-path, frequent-…)."
    ),
    click.option("--num-kernels", help="Largest number of kernels of each kind (…-breakdown).", **_NUMBER),
    click.option("--duration-ratio", help="Combine the kernels beyond this share (…-breakdown).", **_SHARE),
    click.option(
        "--no-memory", "memory_kernels", help="Without copies and sets (kernel-breakdown, launch-statistics).", **_OFF
    ),
    click.option("--cpu", help="Annotations on the CPU (annotation-breakdown).", **_SWITCH),
    click.option("--stream", "streams", help="Only this stream (idle-breakdown).", **_MANY),
    click.option("--kernel-delay", help="µs that launching a kernel may take [30] (idle-breakdown).", **_NUMBER),
    click.option("--intervals", help="Also print statistics of the intervals (idle-breakdown).", **_SWITCH),
    click.option("--runtime-cutoff", help="µs of a long launch call [50] (launch-statistics).", **_NUMBER),
    click.option("--launch-delay-cutoff", help="µs of a long delay [100] (launch-statistics).", **_NUMBER),
    click.option("--series", help="Also print the series over time (queue-length, memory-bandwidth).", **_SWITCH),
    click.option("--max-queue-length", help="Length of a full queue [1024] (queue-length).", **_NUMBER),
)


_EXAMPLES = """\b
Examples:
  dptrace hta --list
  dptrace hta runs/ddp idle-breakdown --ranks 0
  dptrace hta runs/ddp critical-path --instance 1
  dptrace hta runs/ddp kernel-breakdown --html kernels.html
  dptrace hta runs/naive trace-diff --against runs/ddp --csv > diff.csv
"""


@click.command(epilog=_EXAMPLES)
@click.argument("paths", metavar="RUN...", nargs=-1, type=click.Path())
@click.argument("analysis", metavar="ANALYSIS")
@click.option("--list", is_eager=True, is_flag=True, expose_value=False, callback=_list, help="Describe the analyses.")
@answer_options("html", csv="Print a table as CSV; --table chooses one of several.")
@click.option("--table", "only", metavar="NAME", help="Print only this table.")
@click.option("--html", "page", type=OutputFile(), metavar="FILE", help="Write tables and HTA's plots as one page.")
@click.option("--all", "every", is_flag=True, help="Print every table in full.")
@strict_option
@group(*_OPTIONS)
@quiet_option
def command(
    paths: tuple[str, ...],
    analysis: str,
    to: Destination,
    only: str | None,
    page: Path | None,
    every: bool,
    strict: bool,
    against: tuple[str, ...],
    verbosity: str,
    **choices: Any,
) -> None:
    """Run an ANALYSIS of Holistic Trace Analysis (HTA) on RUN; --list describes them.

    dptrace reads the traces and HTA computes: the figures are identical to those with HTA's own loader, in a fraction
    of its time. HTA is an optional package; where it is missing, the error says how to install it.
    """
    options = Options(**choices)
    _check(paths, analysis, options, against)
    if page is not None:
        if to.output is not None or not to.as_text:
            raise UsageError("Choose one of --json, --csv and --html; --html names its file, so leave -o out with it.")
        to = replace(to, output=page, form=check_file(page, to.force, ("html",)))
    from dptrace.hta.analyses import analyze, plain_records
    from dptrace.readers.discovery import find

    second = find(against) if against else None
    with progress("Analyzing", verbosity, measured=False):
        result = analyze(analysis, find(paths), options, second, strict, to.form == "html", to.force)
    result = _chosen(result, analysis, only, to.form == "csv")

    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.data_frame import print_frame

        for name, frame in result.tables.items():
            print_frame(frame, f"{analysis}: {name.replace('_', ' ')}", console, every)

    def data() -> object:
        records = {name: plain_records(frame) for name, frame in result.tables.items()}
        return {"schema": 1, "analysis": analysis, "tables": records, "notes": list(result.notes)}

    to.write(Answer(tables, data, lambda: next(iter(result.tables.values())), lambda: _html(result, analysis, paths)))
    print_notes(result.notes)
    for name in result.written:
        print_hint(f"Wrote {name}.", verbosity)
    if to.on_terminal and not result.written and ANALYSES[analysis].has_plots:
        print_hint(f"Next: add --html {analysis}.html to draw it.", verbosity)


def _check_name(paths: tuple[str, ...], analysis: str) -> None:
    if analysis in ANALYSES:
        return
    if swapped := next(filter(ANALYSES.__contains__, paths), None):
        raise UsageError(f"Name the run before the analysis: dptrace hta {analysis} {swapped}")
    if not paths:
        raise UsageError(f"Name an analysis after the run: dptrace hta {analysis} ANALYSIS, one of {_names()}.")
    nearest = difflib.get_close_matches(analysis, ANALYSES, 1)
    suggestion = f"Did you mean {nearest[0]}? " if nearest else ""
    raise UsageError(f"No such analysis {analysis!r}. {suggestion}The analyses are {_names()}.")


def _check(paths: tuple[str, ...], analysis: str, options: Options, against: tuple[str, ...]) -> None:
    """Refuse combinations that can't work, before any work."""
    _check_name(paths, analysis)
    if not paths:
        raise UsageError(f"Name a run before the analysis: dptrace hta RUN {analysis}.")
    for pattern in options.data_loading:
        compiled(pattern, "--data-loading")
    description = ANALYSES[analysis]
    for name in options.chosen_options():
        usable = (*_COMMON_OPTIONS, *description.option_names)
        if name not in usable:
            raise UsageError(f"{analysis} has no option {_flag(name)}; it has {', '.join(map(_flag, usable))}.")
    if (analysis == "trace-diff") != bool(against):
        raise UsageError("trace-diff needs a second run, --against RUN2; no other analysis has this option.")
    if description.one_rank and len(options.ranks) > 1:
        raise UsageError(f"{analysis} analyzes one rank; choose it with --ranks.")
    if analysis == "trace-diff" and options.include_last_step:
        raise UsageError("trace-diff never drops the last step; choose steps with --iteration.")
    if analysis == "frequent-sequences" and not options.operator:
        raise UsageError("Name the operator whose kernels to analyze: --operator aten::linear.")


def _names() -> str:
    return ", ".join(ANALYSES)


def _flag(name: str) -> str:
    return next(param.opts[0] for param in command.params if param.name == name)


def _chosen(result: Result, analysis: str, only: str | None, one: bool) -> Result:
    """Keep the requested table; CSV holds only one."""
    names = ", ".join(result.tables)
    if only is not None:
        if only not in result.tables:
            raise UsageError(f"{analysis} has no table {only}; choose from {names}.")
        return replace(result, tables={only: result.tables[only]})
    if one and len(result.tables) > 1:
        raise UsageError(f"{analysis} has {len(result.tables)} tables; choose one with --table: {names}.")
    return result


def _html(result: Result, analysis: str, paths: tuple[str, ...]) -> str:
    from dptrace.viewers.pages.hta import plotly_page

    run = sanitize(" ".join(paths))
    return plotly_page(f"{analysis}: {run}", ANALYSES[analysis].summary, result.tables, result.figures, result.notes)
