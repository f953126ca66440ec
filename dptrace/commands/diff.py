"""``dptrace diff``: two runs compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.options import (
    RenamedOption,
    json_option,
    output_option,
    reading_options,
    verbosity_options,
)
from dptrace.commands.shared.output import (
    OutputFile,
    check_answer,
    check_page,
    csv_text,
    emit,
    json_text,
    print_hint,
    print_notes,
    print_tables,
    quoted_paths,
    write_text,
)
from dptrace.commands.shared.progress import progress
from dptrace.commands.shared.reading import open_with_progress
from dptrace.commands.shared.sides import SideOptions, SidesCommand, side_options
from dptrace.commands.shared.workload_options import WORKLOAD_OPTIONS, with_workload, workload_options
from dptrace.core.text import sanitize
from dptrace.core.units import byte_size
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from dptrace.comparison.compare import Comparison
    from dptrace.comparison.thresholds import ThresholdResult
    from dptrace.run.run import Run

CROSSED = 3
"""Exit code when a limit is exceeded: 1 is bad input, 2 wrong use."""

_TABLES = ("figures", "ranks", "collectives", "kernels")


@click.command(cls=SidesCommand)
@side_options
@click.option("--per-rank", is_flag=True, help="Also show each rank that both runs have.")
@click.option("--all", "every", is_flag=True, help="Print every table in full: each collective and kernel.")
@json_option
@click.option(
    "--csv",
    "as_csv",
    type=click.Choice(_TABLES),
    is_flag=False,
    flag_value="figures",
    metavar="[TABLE]",
    help="Print CSV (times in ns): figures (the default), ranks, collectives or kernels.",
)
@click.option("--html", type=OutputFile(), help="Write a page: both runs' Gantt charts on one axis, and the tables.")
@click.option(
    "--html-steps",
    metavar="A:B",
    cls=RenamedOption,
    old_name="--draw-steps",
    help="Steps that --html draws: 11:12 [those of median length].",
)
@output_option
@click.option(
    "--include-outliers",
    is_flag=True,
    cls=RenamedOption,
    old_name="--every-step",
    help="Keep steps that differ from the others, such as a slow first one.",
)
@click.option(
    "--fail-if", "limits", multiple=True, metavar="LIMIT", help="Exit with 3 if exceeded. May be given several times."
)
@click.option(
    "--fail-within-noise",
    is_flag=True,
    cls=RenamedOption,
    old_name="--even-noise",
    help="Let --fail-if also fail on changes that may be noise.",
)
@workload_options
@reading_options
@verbosity_options
def command(
    sides: SideOptions,
    include_outliers: bool,
    limits: tuple[str, ...],
    fail_within_noise: bool,
    read_options: ReadOptions,
    verbosity: str,
    **shown: Any,
) -> None:
    """Compare two runs: how much longer or shorter a step of B is than one of A, what changed, and whether it is noise.

    A and B are each what dptrace analyze reads: a run folder, a trace file, a glob in quotes. A change is reported if
    it is larger than the noise of the steps, which depend on each other; if that cannot be decided, the answer is
    "cannot tell". Record 10 steps or more. One recording per side can't separate a change of the code from one of the
    machine: give several, recorded alternately, with --before and --after.

    A LIMIT of --fail-if is 'FIGURE > +5%' or '> +2ms' (grew by more), '< -10%' (fell by more), '> 20ms' (in B),
    '> 30%' (of B's step). FIGURE is forward, backward, optimizer, other, exposed_comm, overlapped_comm,
    exposed_memory, idle, wall, data_loading, allocator, synchronizing, host_bound, launch_latency, waiting, bubble,
    exposed_wait, transfer, wait, overlap, or mfu. A limit on a change fails only if the change is beyond noise, so that
    a CI job does not fail by chance; with --fail-within-noise it always counts.

    Exit codes: 0, 1 bad input, 2 wrong use, 3 a limit is exceeded.

    \b
    Examples:
      dptrace diff runs/naive runs/interleaved
      dptrace diff runs/yesterday runs/today --html diff.html
      dptrace diff --before runs/main-* --after runs/branch-*
      dptrace diff runs/long runs/long --before-steps 4:33 --after-steps 34:63
      dptrace diff runs/main runs/branch --fail-if 'wall > +3%' --fail-if 'mfu < -2%'
      dptrace diff runs/main runs/branch --csv kernels > kernels.csv
    """
    workload = {name: shown.pop(name) for name in WORKLOAD_OPTIONS}
    output_options = _OutputOptions(**shown)
    output_options.check()
    from dptrace.comparison.compare import compare
    from dptrace.comparison.thresholds import parse

    parsed = [parse(limit) for limit in limits]
    before, after = _opened(sides, workload, read_options, verbosity)
    comparison = compare(before, after, include_outliers)
    crossings = [limit.check(comparison, fail_within_noise) for limit in parsed]
    _show(comparison, crossings, output_options, verbosity)
    if output_options.as_tables and output_options.output is None and output_options.html is None:
        print_hint(f"Next: dptrace diff {quoted_paths(sides.arguments)} --html diff.html", verbosity)
    for crossing in crossings:
        click.echo(sanitize(crossing.text), err=True)
    click.get_current_context().exit(CROSSED if any(crossing.failed for crossing in crossings) else 0)


def _opened(
    sides: SideOptions, workload: dict[str, float | None], read_options: ReadOptions, verbosity: str
) -> tuple[list[Run], list[Run]]:
    """Read the recordings of both sides."""
    before, after = (
        [with_workload(open_with_progress((path,), read_options, verbosity, selection), **workload) for path in paths]
        for paths, selection in zip((sides.before, sides.after), sides.selections, strict=True)
    )
    return before, after


@dataclass(frozen=True)
class _OutputOptions:
    """What to print or draw, and where."""

    as_json: bool
    as_csv: str | None
    per_rank: bool
    every: bool
    html: Path | None
    html_steps: str | None
    output: Path | None
    force: bool

    @property
    def as_tables(self) -> bool:
        return not self.as_json and not self.as_csv

    @property
    def drawn_steps(self) -> tuple[int, int] | None:
        return None if self.html_steps is None else _pair(self.html_steps)

    def check(self) -> None:
        """Refuse options that would be ignored, and files that would be overwritten."""
        output, html = self.output, self.html
        check_answer(output, self.force, self.as_json, bool(self.as_csv))
        if self.drawn_steps is not None and html is None:
            raise UsageError("--html-steps chooses what --html draws; add --html FILE.")
        if html is None:
            return
        if output is not None and output.resolve() == html.resolve():
            raise UsageError(f"{output} can't hold both the page and the tables.")
        check_page(html, self.force)


def _pair(text: str) -> tuple[int, int]:
    """Parse ``11:12``, or ``11`` for the same step of both."""
    match = re.fullmatch(r"\s*(\d{1,12})(?::(\d{1,12}))?\s*", text)
    if not match:
        raise UsageError(
            f"--html-steps {text}: expected a step of A and one of B, for example 11:12, or one for both, 11."
        )
    return int(match[1]), int(match[2] or match[1])


def _show(
    comparison: Comparison, crossings: Sequence[ThresholdResult], output_options: _OutputOptions, verbosity: str
) -> None:
    """Print tables, JSON or CSV, and write the page."""
    output = output_options.output
    if output_options.as_json:
        content = comparison.to_dict() | {"limits": [crossing.to_dict() for crossing in crossings]}
        emit(json_text(content), output)
    elif output_options.as_csv:
        emit(csv_text(getattr(comparison, output_options.as_csv)()), output)
    else:
        from dptrace.viewers.terminal.comparison import print_comparison

        every, per_rank = output_options.every, output_options.per_rank
        print_tables(lambda console: print_comparison(comparison, console, every, per_rank), output)
    if not output_options.as_tables or output is not None:
        from dptrace.viewers.terminal.comparison import texts_below

        print_notes((*comparison.differences, *texts_below(comparison)))
    if output is not None:
        print_hint(f"Wrote {output}.", verbosity)
    if output_options.html is not None:
        _write_page(comparison, output_options.html, output_options.drawn_steps, verbosity)


def _write_page(comparison: Comparison, html: Path, steps: tuple[int, int] | None, verbosity: str) -> None:
    from dptrace.viewers.pages.comparison import document

    with progress("Drawing", verbosity, measured=False):
        page = document(comparison, steps)
    write_text(html, page)
    print_hint(f"Wrote {html} ({byte_size(len(page.encode()))}).", verbosity)
