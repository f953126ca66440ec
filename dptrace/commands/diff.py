"""``dptrace diff``: two runs compared."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.output import OutputFile
from dptrace.commands.shared.shared import (
    console,
    open_with_progress,
    print_hint,
    progress,
    quoted_paths,
    reading_options,
    verbosity_options,
)
from dptrace.commands.view import parse_ranks, parse_steps
from dptrace.core.files import atomic_write, check_output
from dptrace.core.text import sanitize
from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from dptrace.comparison.compare import Comparison
    from dptrace.comparison.thresholds import Crossing

CROSSED = 3
"""Exit code when a limit is crossed: 1 is bad input, 2 wrong use."""

_WHAT = ("figures", "ranks", "collectives", "kernels")


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON (schema 1, times in ns).")
@click.option(
    "--csv",
    "as_csv",
    type=click.Choice(_WHAT),
    is_flag=False,
    flag_value="figures",
    help="Print a CSV row for each figure (times in ns); or for each figure and rank, collective, or kernel.",
)
@click.option("--per-rank", is_flag=True, help="Also each rank that both have, by itself.")
@click.option("--all", "every", is_flag=True, help="Leave no collective and no kernel out of the tables.")
@click.option("--ranks", metavar="LIST", help="Only these ranks of both: 0,1 or 0-3.")
@click.option("--steps", metavar="FIRST:LAST", help="Only these steps of both, by their numbers in the trace.")
@click.option("--every-step", is_flag=True, help="Keep steps that are unlike the others, such as a slow first one.")
@click.option(
    "--fail-if", "limits", multiple=True, metavar="LIMIT", help="Exit with 3 if crossed; several may be given."
)
@click.option("--even-noise", is_flag=True, help="Let --fail-if fail also on what may be noise.")
@click.option("--html", type=OutputFile(), help="Write a page: both runs' Gantts on one time axis, and the tables.")
@click.option("--draw-steps", metavar="A:B", help="Steps that --html draws: 11:12 [those of median length].")
@click.option("-o", "--output", type=OutputFile(dash=True), help="Write to this file instead of the terminal.")
@click.option("--force", is_flag=True, help="Overwrite the files.")
@reading_options
@verbosity_options
def command(
    a: str,
    b: str,
    ranks: str | None,
    steps: str | None,
    every_step: bool,
    limits: tuple[str, ...],
    even_noise: bool,
    read_options: ReadOptions,
    verbosity: str,
    **shown: Any,
) -> None:
    """Compare two runs: what a step of B takes more or less than one of A, what moved, and whether it is noise.

    A and B are each what `dptrace analyze` reads: a run folder, a trace file, a glob in quotes. A difference is named
    if it is beyond what the steps of each run differ by among themselves; with three steps a run, nothing can be.

    A LIMIT of --fail-if is 'FIGURE > +5%' or '> +2ms' (grew by more), '< -10%' (fell by more), '> 20ms' (in B),
    '> 30%' (of B's step). FIGURE is forward, backward, optimizer, other, exposed_comm, overlapped_comm,
    exposed_memory, idle, wall, data_loading, host_bound, launch_latency, waiting, or overlap. One on a change fails
    only where the change is beyond noise, so that a CI job does not fail by chance; --even-noise lifts that.

    Exit codes: 0, 1 bad input, 2 wrong use, 3 a limit is crossed.

    \b
    Examples:
      dptrace diff runs/naive runs/interleaved
      dptrace diff runs/yesterday runs/today --html diff.html
      dptrace diff runs/main runs/branch --fail-if 'wall > +3%' --fail-if 'overlap < 60%'
      dptrace diff runs/main runs/branch --csv kernels > kernels.csv
    """
    output_options = _OutputOptions(**shown)
    output_options.check()
    selection = parse_ranks(ranks) if ranks is not None else None, parse_steps(steps) if steps is not None else None
    from dptrace.comparison.compare import compare
    from dptrace.comparison.thresholds import parse

    parsed = [parse(limit) for limit in limits]
    runs = [open_with_progress((path,), read_options, verbosity).select(*selection) for path in (a, b)]
    found = compare(runs[0], runs[1], every_step)
    crossings = [limit.check(found, even_noise) for limit in parsed]
    _show(found, crossings, output_options, verbosity)
    if output_options.as_tables and output_options.output is None and output_options.html is None:
        print_hint(f"Next: dptrace diff {quoted_paths((a, b))} --html diff.html", verbosity)
    for crossing in crossings:
        click.echo(sanitize(crossing.text), err=True)
    click.get_current_context().exit(CROSSED if any(crossing.failed for crossing in crossings) else 0)


@dataclass(frozen=True)
class _OutputOptions:
    """What is to be shown, and where."""

    as_json: bool
    as_csv: str | None
    per_rank: bool
    every: bool
    html: Path | None
    draw_steps: str | None
    output: Path | None
    force: bool

    @property
    def as_tables(self) -> bool:
        return not self.as_json and not self.as_csv

    @property
    def drawn(self) -> tuple[int, int] | None:
        return None if self.draw_steps is None else _pair(self.draw_steps)

    def check(self) -> None:
        """Refuse before any reading what makes no sense or would destroy."""
        output, html = self.output, self.html
        if self.as_json and self.as_csv:
            raise UsageError("Choose one of --json and --csv.")
        if self.drawn is not None and html is None:
            raise UsageError("--draw-steps says what --html draws; add --html FILE.")
        for path in filter(None, (output, html)):
            check_output(path, self.force)
        if output is None:
            return
        if html is not None and output.resolve() == html.resolve():
            raise UsageError(f"{output} can't hold both the page and the tables.")
        if output.suffix in (".json", ".csv") and self.as_tables:
            raise UsageError(f"{output} would hold tables; add --{output.suffix[1:]}, or let the name end in .txt.")


def _pair(text: str) -> tuple[int, int]:
    """Read ``11:12``, or ``11`` for the same step of both."""
    match = re.fullmatch(r"\s*(\d{1,12})(?::(\d{1,12}))?\s*", text)
    if not match:
        raise UsageError(f"--draw-steps {text}: give a step of A and one of B, for example 11:12, or one for both, 11.")
    return int(match[1]), int(match[2] or match[1])


def _show(found: Comparison, crossings: Sequence[Crossing], output_options: _OutputOptions, verbosity: str) -> None:
    """Write everything that was asked for, each to its place."""
    if output_options.as_tables:
        _tables(found, output_options)
    else:
        text = _json(found, crossings) if output_options.as_json else _csv(found, str(output_options.as_csv))
        if output_options.output is None:
            click.echo(text.encode(), nl=False)  # bytes, so that the encoding of a terminal can't harm the data
        else:
            with atomic_write(output_options.output) as temporary:
                temporary.write_text(text, encoding="utf-8")
    if not output_options.as_tables or output_options.output is not None:
        _print_notes(found)
    if output_options.output is not None:
        print_hint(f"Wrote {output_options.output}.", verbosity)
    if output_options.html is not None:
        _page(found, output_options.html, output_options.drawn, verbosity)


def _tables(found: Comparison, output_options: _OutputOptions) -> None:
    from rich.console import Console

    from dptrace.viewers.terminal.comparison import print_comparison

    if output_options.output is None:
        print_comparison(found, console(), output_options.every, output_options.per_rank)
        return
    with atomic_write(output_options.output) as temporary, temporary.open("w", encoding="utf-8") as file:
        print_comparison(
            found, Console(file=file, width=132, highlight=False), output_options.every, output_options.per_rank
        )


def _json(found: Comparison, crossings: Sequence[Crossing]) -> str:
    # In ASCII, as this writes it, no name from a trace can give orders to a terminal.
    return json.dumps(found.to_dict() | {"limits": [crossing.to_dict() for crossing in crossings]}, indent=1) + "\n"


def _csv(found: Comparison, what: str) -> str:
    frame = getattr(found, what)()
    texts = frame.select_dtypes(exclude="number").columns
    return str(frame.assign(**{n: frame[n].map(sanitize, na_action="ignore") for n in texts}).to_csv(index=False))


def _print_notes(found: Comparison) -> None:
    """Say on stderr what the user must know to believe the figures; --quiet does not hide it."""
    from dptrace.viewers.terminal.comparison import texts_below

    for note in (*found.differences, *texts_below(found)):
        click.echo(f"! {sanitize(note)}", err=True)


def _page(found: Comparison, html: Path, drawn: tuple[int, int] | None, verbosity: str) -> None:
    from dptrace.viewers.pages.comparison import document

    with progress("Drawing", verbosity, measured=False):
        page = document(found, drawn)
    with atomic_write(html) as temporary:
        temporary.write_text(page, encoding="utf-8")
    print_hint(f"Wrote {html} ({len(page) / 1e6:.1f} MB).", verbosity)
