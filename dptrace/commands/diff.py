"""``dptrace diff``: two runs compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from dptrace.commands.shared.answer import Answer, Destination, answer_options, check_file
from dptrace.commands.shared.options import (
    Selection,
    align_option,
    reading_options,
    verbosity_options,
    with_workload,
    workload_options,
)
from dptrace.commands.shared.output import (
    OutputFile,
    print_hint,
    print_notes,
    print_written,
    progress,
    quoted_paths,
    write_text,
)
from dptrace.commands.shared.reading import Sides, SidesCommand, open_with_progress, side_options
from dptrace.core.files import check_output
from dptrace.core.units import sanitize
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.comparison.compare import Comparison
    from dptrace.comparison.limits import Threshold, ThresholdResult
    from dptrace.run.run import Run

CROSSED = 3
"""Exit code when a limit is exceeded: 1 is bad input, 2 wrong use."""

_WATCH_FORMS = ("text", "md", "json")
_OF_RECORDINGS = ("per_rank", "html", "html_steps", "junit", "include_outliers", "limits", "fail_within_noise")
"""Options without effect on watches, which are compared by their summaries."""
_TABLES = ("figures", "ranks", "collectives", "kernels")
_CSV = click.option(
    "--csv",
    "as_csv",
    type=click.Choice(_TABLES),
    is_flag=False,
    flag_value=_TABLES[0],
    metavar="[TABLE]",
    help="Print CSV (times in ns): figures (the default), ranks, collectives or kernels.",
)


@click.command(cls=SidesCommand)
@side_options
@click.option("--per-rank", is_flag=True, help="Also show each rank that both runs have.")
@click.option("--all", "all_rows", is_flag=True, help="Print every table in full: each collective and kernel.")
@answer_options("html", csv=_CSV, markdown="Print the headline, limits, figures and what moved, for a pull request.")
@click.option("--html", type=OutputFile(), help="Write a page: both runs' Gantt charts on one axis, and the tables.")
@click.option("--junit", type=OutputFile(), help="Write a test case for each --fail-if, as CI servers read it (XML).")
@click.option(
    "--html-steps",
    metavar="A:B",
    help="Steps that --html draws: 11:12 [those of median length].",
)
@click.option(
    "--include-outliers",
    is_flag=True,
    help="Keep steps that differ from the others, such as a slow first one.",
)
@click.option(
    "--fail-if", "limits", multiple=True, metavar="LIMIT", help="Exit with 3 if exceeded. May be given several times."
)
@click.option(
    "--fail-within-noise",
    is_flag=True,
    help="Let --fail-if also fail on changes that may be noise.",
)
@click.option(
    "--fail-unchecked",
    is_flag=True,
    help="Let --fail-if also fail on figures that the runs lack or can't decide.",
)
@workload_options
@align_option
@reading_options
@verbosity_options
def command(
    sides: Sides,
    per_rank: bool,
    all_rows: bool,
    to: Destination,
    html: Path | None,
    html_steps: str | None,
    junit: Path | None,
    include_outliers: bool,
    limits: tuple[str, ...],
    fail_within_noise: bool,
    fail_unchecked: bool,
    read_options: ReadOptions,
    verbosity: str,
    **workload: float | None,
) -> None:
    """Compare two runs: how much longer or shorter a step of B is than one of A, what changed, and whether it is noise.

    A and B are each what dptrace analyze reads: a run folder, a trace file, a glob in quotes. With one of them, A is
    the baseline in use (dptrace baseline). A change is reported if it is larger than the noise of the steps; if that
    cannot be decided, the answer is "cannot tell". Record 10 steps or more. One recording per side can't separate a
    change of the code from one of the machine: give several, recorded alternately, with --before and --after.

    A LIMIT of --fail-if is 'FIGURE > +5%' or '> +2ms' (grew by more), '< -10%' (fell by more), '> 20ms' (in B),
    '> 30%' (of B's step). FIGURE is forward, backward, optimizer, other, exposed_comm, overlapped_comm,
    exposed_memory, idle, wall, data_loading, allocator, synchronizing, host_bound, launching, launch_latency,
    waiting, bubble, unexplained, exposed_wait, transfer, wait, overlap, or mfu. A limit on a change fails only if the
    change is beyond noise; where noise hides whether it is kept, it says so, and how many recordings would tell.

    Exit codes: 0, 1 bad input, 2 wrong use, 3 a limit is exceeded.

    \b
    Examples:
      dptrace diff runs/yesterday runs/today --html diff.html
      dptrace diff --before runs/main-* --after runs/branch-*
      dptrace diff runs/long runs/long --before-steps 4:33 --after-steps 34:63
      dptrace diff runs/main runs/branch --fail-if 'wall > +3%' --fail-if 'mfu < -2%'
      dptrace diff --baseline main --after runs/branch-* --fail-if 'wall > +3%' --junit diff.xml
      dptrace diff runs/main runs/branch --csv kernels > kernels.csv
    """
    if _compare_watches(sides.a, sides.b, to):
        return
    drawn_steps = _drawn_steps(html_steps, html, to)
    parsed = _parsed_limits(limits, fail_unchecked, junit, (to.output, html), to.force)
    from dptrace.comparison.compare import compare
    from dptrace.viewers.terminal.comparison import texts_below

    before, after = _opened(sides, sides.selections(), workload, read_options, verbosity)
    with progress("Comparing", verbosity, measured=False):
        comparison = compare(before, after, include_outliers)
    crossings = [limit.check(comparison, fail_within_noise, fail_unchecked) for limit in parsed]
    answer = _answer(comparison, crossings, all_rows, per_rank, to.table or _TABLES[0], drawn_steps)
    to.write(answer)
    if not to.on_terminal:
        print_notes((*comparison.differences, *texts_below(comparison)))
    if html is not None:
        replace(to, output=html, form="html").write(answer)
    elif to.on_terminal:
        print_hint(f"Next: dptrace diff {quoted_paths(sides.arguments)} --html diff.html", verbosity)
    _report_limits(comparison, crossings, junit, verbosity)


def _compare_watches(a: str | None, b: str | None, to: Destination) -> bool:
    """Compare the summaries of two watched runs; return whether A and B are such runs."""
    if a is None or b is None:
        return False
    from dptrace.watch import compare as watches

    kinds = [watches.is_watch(path) for path in (a, b)]
    if not any(kinds):
        return False
    if not all(kinds):
        raise UsageError(f"{a} and {b}: one is the folder of a watch, the other a recording. Compare two of a kind.")
    context = click.get_current_context()
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if (other := next((name for name in given if name in _OF_RECORDINGS), None)) or to.form not in _WATCH_FORMS:
        option = f"--{(other or '').replace('limits', 'fail-if').replace('_', '-')}" if other else f"A file .{to.form}"
        raise UsageError(f"{option} is for recordings: watches are compared as text, Markdown or JSON.")
    content = watches.compare(a, b)
    to.write(Answer(lambda console: console.print(watches.text(content), highlight=False), lambda: content))
    return True


def _opened(
    sides: Sides,
    selections: tuple[Selection, Selection],
    workload: dict[str, float | None],
    read_options: ReadOptions,
    verbosity: str,
) -> tuple[list[Run], list[Run]]:
    """Read the recordings of both sides; of a baseline, what is stored."""
    from dptrace.comparison import baseline

    # Before any long read, since it may be missing.
    stored = None if sides.recordings()[0] else baseline.find(sides.baseline)
    before, after = (
        [with_workload(open_with_progress((path,), read_options, verbosity, selection), **workload) for path in paths]
        for paths, selection in zip(sides.recordings(), selections, strict=True)
    )
    return before if stored is None else [*baseline.read(stored).runs(stored)], after


def _answer(
    comparison: Comparison,
    crossings: Sequence[ThresholdResult],
    all_rows: bool,
    per_rank: bool,
    table: str,
    drawn_steps: tuple[int, int] | None,
) -> Answer:
    def tables(console: Console) -> None:
        from dptrace.viewers.terminal.comparison import print_comparison

        print_comparison(comparison, console, all_rows, per_rank)

    def data() -> object:
        return comparison.to_dict() | {"limits": [crossing.to_dict() for crossing in crossings]}

    def page() -> str:
        from dptrace.viewers.pages.comparison import document

        return document(comparison, drawn_steps)

    def text() -> str:
        from dptrace.viewers.pages.ci import markdown

        return markdown(comparison, crossings)

    return Answer(tables, data, getattr(comparison, table), page, markdown=text)


def _parsed_limits(
    limits: tuple[str, ...], fail_unchecked: bool, junit: Path | None, others: Sequence[Path | None], force: bool
) -> list[Threshold]:
    """Return the limits; refuse options that are about limits where there is none, and a file that is there already."""
    from dptrace.comparison.limits import parse

    if fail_unchecked and not limits:
        raise UsageError("--fail-unchecked is about limits; add --fail-if.")
    if junit is not None:
        if not limits:
            raise UsageError("--junit writes a test case for each limit; add --fail-if.")
        if junit.resolve() in {path.resolve() for path in others if path is not None}:
            raise UsageError(f"{junit} can't hold both the test cases and another answer.")
        check_output(junit, force)
    return [parse(limit) for limit in limits]


def _report_limits(
    comparison: Comparison, crossings: Sequence[ThresholdResult], junit: Path | None, verbosity: str
) -> None:
    """Print the result of each limit, write them as test cases, and end with the exit code that they stand for."""
    if junit is not None:
        from dptrace.viewers.pages.ci import junit_xml

        write_text(junit, junit_xml(comparison, crossings))
        print_written(junit, verbosity)
    for crossing in crossings:
        click.echo(sanitize(crossing.text), err=True)
    click.get_current_context().exit(CROSSED if any(crossing.failed for crossing in crossings) else 0)


def _drawn_steps(steps: str | None, html: Path | None, to: Destination) -> tuple[int, int] | None:
    """Return which steps are drawn, after refusing a page that would be overwritten or not drawn."""
    if html is not None:
        if to.output is not None and to.output.resolve() == html.resolve():
            raise UsageError(f"{html} can't hold both the page and the tables.")
        check_file(html, to.force, ("html",))
    if steps is not None and html is None and to.form != "html":
        raise UsageError("--html-steps chooses what --html draws; add --html FILE.")
    return None if steps is None else _pair(steps)


def _pair(text: str) -> tuple[int, int]:
    """Parse ``11:12``, or ``11`` for the same step of both."""
    match = re.fullmatch(r"\s*(\d{1,12})(?::(\d{1,12}))?\s*", text)
    if not match:
        raise UsageError(
            f"--html-steps {text}: expected a step of A and one of B, for example 11:12, or one for both, 11."
        )
    return int(match[1]), int(match[2] or match[1])
