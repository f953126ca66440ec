"""``dptrace hta``: the analyses of Holistic Trace Analysis, on dptrace's reader."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.output import OutputFile
from dptrace.commands.shared.shared import console, print_hint, progress, verbosity_options
from dptrace.core.files import atomic_write, check_output
from dptrace.core.text import sanitize
from dptrace.errors import UsageError
from dptrace.hta.options import ANALYSES, Options

if TYPE_CHECKING:
    from dptrace.hta.analyses import Result

_ALL_TAKE = ("ranks", "include_last_step", "rounding")
_FLAGS = {
    "include_last_step": "--include-last-step",
    "rounding": "--no-rounding",
    "ranks": "--rank",
    "memory_kernels": "--no-memory",
    "streams": "--stream",
    "against_ranks": "--against-rank",
    "iterations": "--iteration",
    "against_iterations": "--against-iteration",
}
"""The options that are not called as the choice is."""


def _list(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        width = max(map(len, ANALYSES))
        for name, description in ANALYSES.items():
            click.echo(f"{name:{width}}  {description.summary}")
        ctx.exit()


def _instance(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Take N or A:B, counted from 0."""
    if value is None:
        return None
    first, _, last = value.partition(":")
    if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
        raise click.BadParameter(f"{value!r} is neither a number nor two as in 1:3.", ctx, param)
    return int(first), int(last or first)


_MANY: dict[str, Any] = {"multiple": True, "type": int, "metavar": "N"}
_NUMBER: dict[str, Any] = {"type": click.IntRange(min=0), "metavar": "N"}
_SHARE: dict[str, Any] = {"type": click.FloatRange(0, 1), "metavar": "SHARE"}
_SWITCH: dict[str, Any] = {"flag_value": True, "default": None}
# What the analyses can be told. Nothing is the default of each, so that HTA's own holds.
_OPTIONS = (
    click.option("--rank", "ranks", help="Only this rank; may be given several times.", **_MANY),
    click.option("--include-last-step", help="Keep the last step, which HTA leaves out.", **_SWITCH),
    click.option(
        "--no-rounding", "rounding", flag_value=False, default=None, help="Keep fractions of µs, which HTA rounds."
    ),
    click.option("--against", multiple=True, type=click.Path(), metavar="RUN2", help="Second run (trace-diff)."),
    click.option("--against-rank", "against_ranks", help="Ranks of the second run (trace-diff).", **_MANY),
    click.option("--iteration", "iterations", help="Steps to compare [the first] (trace-diff).", **_MANY),
    click.option("--against-iteration", "against_iterations", help="Steps of the second run (trace-diff).", **_MANY),
    click.option("--device", type=click.Choice(["cpu", "gpu", "all"]), help="What to compare (trace-diff)."),
    click.option("--short-names", help="Names without arguments (trace-diff).", **_SWITCH),
    click.option("--annotation", metavar="TEXT", help="Where to look [ProfilerStep] (critical-path)."),
    click.option(
        "--instance", metavar="N[:M]", callback=_instance, help="Which annotation, from 0 [0] (critical-path)."
    ),
    click.option("--data-loading", multiple=True, metavar="REGEX", help="CPU events that load data (critical-path)."),
    click.option("--operator", metavar="NAME", help="Whose kernels to look at (frequent-sequences)."),
    click.option("--min-length", help="Shortest sequence [3] (frequent-sequences).", **_NUMBER),
    click.option("--top", help="How many to draw and overlay [5] (frequent-sequences).", **_NUMBER),
    click.option(
        "--overlay", metavar="DIR", help="Also write the trace with the result in it (critical-path, frequent-…)."
    ),
    click.option("--num-kernels", help="At most so many of a kind (…-breakdown).", **_NUMBER),
    click.option("--duration-ratio", help="Others beyond this share (…-breakdown).", **_SHARE),
    click.option(
        "--no-memory",
        "memory_kernels",
        flag_value=False,
        default=None,
        help="Without copies and sets (kernel-breakdown, launch-statistics).",
    ),
    click.option("--cpu", help="Annotations on the CPU (annotation-breakdown).", **_SWITCH),
    click.option("--stream", "streams", help="Only this stream (idle-breakdown).", **_MANY),
    click.option("--kernel-delay", help="µs that launching a kernel may take [30] (idle-breakdown).", **_NUMBER),
    click.option("--intervals", help="Also statistics of the intervals (idle-breakdown).", **_SWITCH),
    click.option("--runtime-cutoff", help="µs of a long launch call [50] (launch-statistics).", **_NUMBER),
    click.option("--launch-delay-cutoff", help="µs of a long delay [100] (launch-statistics).", **_NUMBER),
    click.option("--series", help="Also the series over time (queue-length, memory-bandwidth).", **_SWITCH),
    click.option("--max-queue-length", help="A full queue [1024] (queue-length).", **_NUMBER),
)


def _options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command()
@click.argument("paths", metavar="RUN...", nargs=-1, type=click.Path())
@click.argument("analysis", metavar="ANALYSIS")
@click.option("--list", is_eager=True, is_flag=True, expose_value=False, callback=_list, help="Explain the analyses.")
@click.option("--json", "as_json", is_flag=True, help="Print the tables as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print a table as CSV; --table chooses where there are several.")
@click.option("--table", "only", metavar="NAME", help="Only this table.")
@click.option("--html", "page", type=OutputFile(), metavar="FILE", help="Write tables and HTA's plots as one page.")
@click.option("--all", "every", is_flag=True, help="Leave no row out of the tables.")
@click.option("-o", "--output", type=OutputFile(dash=True), help="Write to this file instead of the terminal.")
@click.option("--force", is_flag=True, help="Overwrite files.")
@click.option("--strict", is_flag=True, help="Refuse files that are cut off or damaged, instead of telling so.")
@_options
@verbosity_options
def command(
    paths: tuple[str, ...],
    analysis: str,
    as_json: bool,
    as_csv: bool,
    only: str | None,
    page: Path | None,
    every: bool,
    output: Path | None,
    force: bool,
    strict: bool,
    against: tuple[str, ...],
    verbosity: str,
    **choices: Any,
) -> None:
    """Run an ANALYSIS of Holistic Trace Analysis (HTA) on RUN; --list explains them.

    HTA computes, dptrace reads: the figures are those of HTA's own loader, to the digit, in a fraction of its time.
    Needs the extra: pip install 'dptrace[hta]'.

    \b
    Examples:
      dptrace hta --list
      dptrace hta runs/ddp idle-breakdown --rank 0
      dptrace hta runs/ddp critical-path --instance 1
      dptrace hta runs/ddp kernel-breakdown --html kernels.html
      dptrace hta runs/naive trace-diff --against runs/ddp --csv > diff.csv
    """
    options = Options(**choices)
    _check(paths, analysis, options, against)
    if as_json + as_csv + (page is not None) > 1:
        raise UsageError("Choose one of --json, --csv and --html.")
    if page is not None and output is not None:
        raise UsageError("--html names its file itself; leave -o out.")
    for file in filter(None, (page, output)):
        check_output(file, force)
    result = _run(paths, analysis, options, against, strict, page is not None, force, verbosity)
    result = _chosen(result, analysis, only, as_csv)
    if page is not None:
        _write(_html(result, analysis, paths), page)
    elif as_json or as_csv:
        _write(_json(result, analysis) if as_json else _csv(result), output)
    else:
        _print(result, analysis, every, output)
    for note in result.notes:
        click.echo(f"! {sanitize(note)}", err=True)
    written = [*result.written, *(str(file) for file in (page, output) if file is not None)]
    for name in written:
        print_hint(f"Wrote {name}.", verbosity)
    if not written and not as_json and not as_csv and ANALYSES[analysis].has_plots:
        print_hint(f"Next: the same with --html {analysis}.html draws it.", verbosity)


def _check(paths: tuple[str, ...], analysis: str, options: Options, against: tuple[str, ...]) -> None:
    """Refuse what makes no sense together, before any work."""
    if analysis not in ANALYSES:
        if not paths:
            raise UsageError(f"Name an analysis after the run: dptrace hta {analysis} ANALYSIS, one of {_names()}.")
        near = difflib.get_close_matches(analysis, ANALYSES, 1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(f"{analysis} is no analysis. {meant}They are: {_names()}.")
    if not paths:
        raise UsageError(f"Name a run before the analysis: dptrace hta RUN {analysis}.")
    description = ANALYSES[analysis]
    for name in options.chosen_options():
        if name not in (*_ALL_TAKE, *description.option_names):
            takes = [_flag(taken) for taken in (*_ALL_TAKE, *description.option_names)]
            raise UsageError(f"{_flag(name)} says nothing to {analysis}; it takes {', '.join(takes)}.")
    if (analysis == "trace-diff") != bool(against):
        raise UsageError("trace-diff compares RUN with a second run: --against RUN2; no other analysis takes it.")
    if description.one_rank and len(options.ranks) > 1:
        raise UsageError(f"{analysis} looks at one rank; give --rank once.")
    if analysis == "trace-diff" and options.include_last_step:
        raise UsageError("trace-diff leaves no step out; choose some with --iteration.")
    if analysis == "frequent-sequences" and not options.operator:
        raise UsageError("Name the operator whose kernels to look at: --operator aten::linear.")


def _names() -> str:
    return ", ".join(ANALYSES)


def _flag(name: str) -> str:
    return _FLAGS.get(name, "--" + name.replace("_", "-"))


def _run(
    paths: tuple[str, ...],
    analysis: str,
    options: Options,
    against: tuple[str, ...],
    strict: bool,
    draw: bool,
    force: bool,
    verbosity: str,
) -> Result:
    from dptrace.hta.analyses import analyze
    from dptrace.readers.sources.discovery import find

    other = find(against) if against else None
    with progress("Analyzing", verbosity, measured=False):
        return analyze(analysis, find(paths), options, other, strict, draw, force)


def _chosen(result: Result, analysis: str, only: str | None, one: bool) -> Result:
    """Leave the table that was asked for; as CSV there can be but one."""
    from dataclasses import replace

    names = ", ".join(result.tables)
    if only is not None:
        if only not in result.tables:
            raise UsageError(f"{analysis} gives no table {only}; it gives {names}.")
        return replace(result, tables={only: result.tables[only]})
    if one and len(result.tables) > 1:
        raise UsageError(f"{analysis} gives {len(result.tables)} tables; choose one with --table: {names}.")
    return result


def _json(result: Result, analysis: str) -> str:
    import json

    from dptrace.hta.analyses import plain_records

    tables = {name: plain_records(frame) for name, frame in result.tables.items()}
    return (
        json.dumps({"schema": 1, "analysis": analysis, "tables": tables, "notes": list(result.notes)}, indent=1) + "\n"
    )


def _csv(result: Result) -> str:
    (frame,) = result.tables.values()
    texts = frame.select_dtypes(exclude="number").columns
    legible_texts = {name: frame[name].map(lambda value: sanitize(str(value))) for name in texts}
    return frame.assign(**legible_texts).to_csv(index=False)


def _html(result: Result, analysis: str, paths: tuple[str, ...]) -> str:
    from dptrace.viewers.pages.hta import plotly_page

    run = sanitize(" ".join(paths))
    return plotly_page(f"{analysis}: {run}", ANALYSES[analysis].summary, result.tables, result.figures, result.notes)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text.encode(), nl=False)  # bytes, so that the encoding of a terminal can't harm the data
        return
    with atomic_write(output) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _print(result: Result, analysis: str, every: bool, output: Path | None) -> None:
    from rich.console import Console

    from dptrace.viewers.terminal.data_frame import print_frame

    def show(target: Console) -> None:
        for name, frame in result.tables.items():
            print_frame(frame, f"{analysis}: {name.replace('_', ' ')}", target, every)

    if output is None:
        show(console())
        return
    with atomic_write(output) as temporary, temporary.open("w", encoding="utf-8") as file:
        show(Console(file=file, width=132, highlight=False))
