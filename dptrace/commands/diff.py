"""``dptrace diff``: two runs compared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from dptrace.commands.shared.answer import (
    CSV,
    HTML,
    JSON,
    MARKDOWN,
    TEXT,
    Answer,
    Destination,
    Form,
    answer_options,
    refuse,
)
from dptrace.commands.shared.options import (
    Selection,
    align_option,
    reading_options,
    verbosity_options,
    with_workload,
    workload_options,
)
from dptrace.commands.shared.output import print_hint, print_notes, progress, quoted_paths
from dptrace.commands.shared.reading import Sides, SidesCommand, open_with_progress, side_options
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

_JUNIT = Form("test cases", (".xml",))
"""A test case for each limit, as CI servers read it."""
_OF_RECORDINGS = ("per_rank", "html_steps", "include_outliers", "limits", "fail_within_noise")
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
_MARKDOWN = "Print the headline, limits, figures and what moved, for a pull request."


@click.command(cls=SidesCommand)
@side_options
@click.option("--per-rank", is_flag=True, help="Also show each rank that both runs have.")
@click.option("--all", "all_rows", is_flag=True, help="Print every table in full: each collective and kernel.")
@answer_options(HTML, _JUNIT, csv=_CSV, markdown=_MARKDOWN, aliases={"html": HTML, "junit": _JUNIT})
@click.option("--html-steps", metavar="A:B", help="Steps that a page draws: 11:12 [those of median length].")
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
    html_steps: str | None,
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

    -o FILE.html is a page with both runs' Gantt charts on one axis and the tables, -o FILE.xml a test case for each
    --fail-if, as CI servers read it (JUnit); -o - prints the tables, too.

    Exit codes: 0, 1 bad input, 2 wrong use, 3 a limit is exceeded.

    \b
    Examples:
      dptrace diff runs/yesterday runs/today -o diff.html
      dptrace diff --before runs/main-* --after runs/branch-*
      dptrace diff runs/long runs/long --before-steps 4:33 --after-steps 34:63
      dptrace diff runs/main runs/branch --fail-if 'wall > +3%' --fail-if 'mfu < -2%'
      dptrace diff --baseline main --after runs/branch-* --fail-if 'wall > +3%' -o diff.xml
      dptrace diff runs/main runs/branch --csv kernels > kernels.csv
    """
    if _compare_watches(sides, to):
        return
    drawn_steps, parsed = _checked(to, html_steps, limits, fail_unchecked)
    from dptrace.comparison.compare import compare
    from dptrace.viewers.terminal.comparison import texts_below

    before, after = _opened(sides, sides.selections(), workload, read_options, verbosity)
    with progress("Comparing", verbosity, measured=False):
        comparison = compare(before, after, include_outliers)
    crossings = [limit.check(comparison, fail_within_noise, fail_unchecked) for limit in parsed]
    to.write(_answer(comparison, crossings, all_rows, per_rank, to.table or _TABLES[0], drawn_steps))
    if not to.on_terminal:
        print_notes((*comparison.differences, *texts_below(comparison)))
    elif not to.has(HTML):
        for hint in _next(comparison, sides):
            print_hint(hint, verbosity)
    for crossing in crossings:
        click.echo(sanitize(crossing.text), err=True)
    click.get_current_context().exit(CROSSED if any(crossing.failed for crossing in crossings) else 0)


def _checked(
    to: Destination, html_steps: str | None, limits: tuple[str, ...], fail_unchecked: bool
) -> tuple[tuple[int, int] | None, list[Threshold]]:
    """Return which steps a page draws, and the limits, after refusing options that would change nothing."""
    from dptrace.comparison.limits import parse

    refuse(
        (
            (html_steps is not None and not to.has(HTML), "--html-steps chooses what a page draws; add -o FILE.html."),
            (fail_unchecked and not limits, "--fail-unchecked is about limits; add --fail-if."),
            (not limits and to.has(_JUNIT), f"{to.file_of(_JUNIT)}: holds a test case for each limit; add --fail-if."),
        )
    )
    return None if html_steps is None else _pair(html_steps), [parse(limit) for limit in limits]


def _compare_watches(sides: Sides, to: Destination) -> bool:
    """Compare the summaries of two watched runs, or of a baseline and one; return whether these are such runs."""
    from dptrace.readers.formats import is_watched

    before, after = sides.recordings()
    kinds = [is_watched(path) for path in (*before, *after)]
    if not any(kinds):
        return False
    if not all(kinds):
        a, b = (*before, *after)[kinds.index(True)], (*before, *after)[kinds.index(False)]
        raise UsageError(f"{a} and {b}: one is the folder of a watch, the other a recording. Compare two of a kind.")
    if max(len(before), len(after)) > 1:
        raise UsageError(f"{after[0]} is a watched run: two are compared, one on each side.")
    if sides.ranks or sides.steps or sides.before_steps or sides.after_steps:
        raise UsageError(f"{after[0]} is a watched run, compared by its summary: leave --ranks and --steps out.")
    from dptrace.comparison import baseline, watches

    stored = None
    if not before:
        path = baseline.find(sides.baseline)
        stored = baseline.read(path).watched
        if stored is None:
            raise UsageError(f"{path} holds recordings, and {after[0]} is a watched run: name two watched runs.")
        before = (str(path),)
    context = click.get_current_context()
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if other := next((name for name in given if name in _OF_RECORDINGS), None):
        option = other.replace("limits", "fail-if").replace("_", "-")
        raise UsageError(f"--{option} is for recordings: watches are compared by their summaries.")
    to.refuse_besides_words("how two watches differ")
    content = watches.compare(before[0], after[0], stored)
    to.write(
        Answer({TEXT: lambda console: console.print(watches.text(content), highlight=False), JSON: lambda: content})
    )
    return True


def _next(comparison: Comparison, sides: Sides) -> Iterator[str]:
    """Yield the next commands: where B is slower, the one that says why, then the page, each on a line to copy."""
    wall, (_, after) = comparison.change("wall_ns"), sides.recordings()
    page = f"dptrace diff {quoted_paths(sides.arguments)} -o diff.html"
    if wall.beyond and wall.delta > 0 and len(after) == 1:
        yield f"Next: dptrace analyze {quoted_paths(after)}   # why B is slower"
    yield f"Next: {page}"


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

    def test_cases() -> str:
        from dptrace.viewers.pages.ci import junit_xml

        return junit_xml(comparison, crossings)

    rows = getattr(comparison, table)
    return Answer({TEXT: tables, JSON: data, CSV: rows, HTML: page, MARKDOWN: text, _JUNIT: test_cases})


def _pair(text: str) -> tuple[int, int]:
    """Parse ``11:12``, or ``11`` for the same step of both."""
    match = re.fullmatch(r"\s*(\d{1,12})(?::(\d{1,12}))?\s*", text)
    if not match:
        raise UsageError(
            f"--html-steps {text}: expected a step of A and one of B, for example 11:12, or one for both, 11."
        )
    return int(match[1]), int(match[2] or match[1])
