"""``dptrace view``: the per-GPU Gantt, as a page or in the terminal."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dptrace.commands.shared.output import OutputFile
from dptrace.commands.shared.picture_options import PictureOptions, picture_options
from dptrace.commands.shared.serve_options import ServeOptions, open_browser, serving_options
from dptrace.commands.shared.shared import (
    open_with_progress,
    print_hint,
    progress,
    quoted_paths,
    reading_options,
    run_argument,
    verbosity_options,
)
from dptrace.core.files import atomic_write
from dptrace.errors import DptraceError, UsageError
from dptrace.load.options import ReadOptions
from dptrace.readers.sources.url import is_url, last_part, redact

if TYPE_CHECKING:
    from dptrace.run.run import Run
    from dptrace.viewers.gantt.chart import Chart


@click.command()
@run_argument
@click.option("-o", "--output", type=OutputFile(), help="Write the page to this file.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@click.option("--no-browser", is_flag=True, help="Write the page, and do not open it.")
@click.option("--text", is_flag=True, help="Draw in the terminal instead; good over SSH.")
@click.option("--against", metavar="RUN", help="Put this run under it on one time axis, with the time that it saves.")
@click.option(
    "--align",
    type=click.Choice(("step", "start")),
    help="What begins together of two runs: each pair of their steps, or only the first. [step]",
)
@click.option("--ranks", metavar="LIST", help="Only these ranks: 0,1 or 0-3.")
@click.option("--steps", metavar="FIRST:LAST", help="Only these steps, by their numbers in the trace: 4:6 or 4.")
@serving_options
@picture_options
@reading_options
@verbosity_options
def command(
    paths: tuple[str, ...],
    output: Path | None,
    force: bool,
    no_browser: bool,
    text: bool,
    against: str | None,
    align: str | None,
    ranks: str | None,
    steps: str | None,
    serving: ServeOptions,
    picture: PictureOptions,
    read_options: ReadOptions,
    verbosity: str,
) -> None:
    """Draw RUN as a Gantt chart: for each GPU its phases, compute, communication and memory over time.

    RUN is a run folder, a trace file, several files (one for each rank), a folder or a glob of traces. The page is
    one file that needs no network. Without -o it is written to the cache folder and opened in the browser; a run too
    large for a file is served to the browser from this machine instead.

    \b
    Examples:
      dptrace view runs/interleaved
      dptrace view runs/ddp -o ddp.html
      dptrace view runs/ddp --ranks 0,1 --steps 4:6
      dptrace view runs/naive --against runs/interleaved
      dptrace view runs/ddp --text
      dptrace view runs/ddp --view breakdown --svg breakdown.svg
    """
    if align is not None and against is None:
        raise UsageError("--align says how two runs are laid out; name the other one with --against RUN.")
    picture.check(output, text, force, against is not None)
    serving.check(output is not None or text or picture.requested or not picture.is_gantt or against is not None)
    runs = _opened([paths, *([(against,)] if against is not None else [])], ranks, steps, read_options, verbosity)
    if picture.requested:
        picture.write(runs, align != "start", verbosity)
        return
    if text:
        _print(runs, align != "start", picture)
        return
    gantt_chart = _gantt_chart(runs, output, picture)
    if gantt_chart is not None and (serving.requested or _too_large(gantt_chart)):
        serving.serve(runs[0], gantt_chart, not no_browser, verbosity)
        return
    with progress("Drawing", verbosity, measured=False):
        page = _document(runs, align != "start", picture, gantt_chart)
    asked = (*paths, "--against", against) if against is not None else paths
    _write(page, output or _cached_page_path(asked), verbosity)
    if output is None and not no_browser:
        _show(
            _cached_page_path(asked),
            quoted_paths(paths) if against is None else f"{quoted_paths(paths)} --against {quoted_paths((against,))}",
        )


def _opened(
    places: list[tuple[str, ...]], ranks: str | None, steps: str | None, read_options: ReadOptions, verbosity: str
) -> list[Run]:
    """Read one run or two, and keep of each what was asked for."""

    selection = parse_ranks(ranks) if ranks is not None else None, parse_steps(steps) if steps is not None else None
    return [open_with_progress(one, read_options, verbosity).select(*selection) for one in places]


def _write(page: str, place: Path, verbosity: str) -> None:
    with atomic_write(place) as temporary:
        temporary.write_text(page, encoding="utf-8")
    print_hint(f"Wrote {place} ({len(page) / 1e6:.1f} MB).", verbosity)


def _print(runs: list[Run], by_step: bool, picture: PictureOptions) -> None:
    """Draw one run or two in the terminal; 80 wide where there is none, unless COLUMNS says otherwise."""
    if not picture.is_gantt:
        picture.print(runs[0])
        return
    from rich.console import Console

    from dptrace.viewers.terminal import gantt as terminal

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else terminal.DEFAULT_WIDTH
    shown_on = Console(file=sys.stdout, width=wide, highlight=False)
    if len(runs) == 2:
        terminal.print_pair(runs[0], runs[1], shown_on, by_step)
    else:
        terminal.print_gantt(runs[0], shown_on)


def _gantt_chart(runs: list[Run], output: Path | None, picture: PictureOptions) -> Chart | None:
    """Lay out what may have to be served: the Gantt chart of one run that is to be looked at, not kept."""
    if len(runs) > 1 or output is not None or not picture.is_gantt:
        return None
    from dptrace.viewers.gantt.chart import chart

    return chart(runs[0])


def _too_large(gantt_chart: Chart) -> bool:
    from dptrace.viewers.gantt.page import MAX_INTERVALS

    return len(gantt_chart) > MAX_INTERVALS


def _document(runs: list[Run], by_step: bool, picture: PictureOptions, gantt_chart: Chart | None) -> str:
    """Draw one run or two as a page."""
    if gantt_chart is not None:
        from dptrace.viewers.gantt import page as gantt

        return gantt.document(runs[0], gantt_chart)
    if len(runs) == 1:
        return picture.document(runs[0])
    from dptrace.viewers.gantt import pair_page as against

    return against.document(runs[0], runs[1], by_step)


def parse_ranks(text: str) -> frozenset[int]:
    """Read ``0,2`` or ``0-3,8``.

    Raises:
        UsageError: it is neither.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"--ranks {text}: give numbers and ranges, for example 0,1 or 0-3.")
        first, last = int(match[1]), int(match[2] or match[1])
        ranks |= set(range(first, last + 1))
    return frozenset(ranks)


def parse_steps(text: str) -> tuple[int, int]:
    """Read ``4`` or ``4:6``: the first and the last step, both shown, by their numbers in the trace.

    Raises:
        UsageError: it is neither.
    """
    match = re.fullmatch(r"\s*(\d{1,12})(?::(\d{1,12}))?\s*", text)
    if not match or int(match[2] or match[1]) < int(match[1]):
        raise UsageError(f"--steps {text}: give the first and the last number, for example 4:6, or one, 4.")
    return int(match[1]), int(match[2] or match[1])


def _cached_page_path(paths: tuple[str, ...]) -> Path:
    """Name the page's place in the user's cache: one for each run, so that looking twice leaves one file."""
    from dptrace.core.files import cache_folder

    folder = cache_folder() / "pages"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DptraceError(f"{folder}: can't be made: {error.strerror}. Name a place: -o page.html.") from None
    whole = "\0".join(path if is_url(path) else str(Path(path).absolute()) for path in paths)
    name = last_part(redact(paths[0])) if is_url(paths[0]) else Path(paths[0]).absolute().name
    stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)[:60]
    return folder / f"{stem}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}.html"


def _show(page: Path, drawn: str) -> None:
    """Open the page, or say how to look at it where no browser can be opened."""
    if open_browser(page.as_uri()):
        return
    click.echo(
        "No browser could be opened here. Copy the file to a machine that has one (scp), "
        f"or draw in the terminal: dptrace view {drawn} --text",
        err=True,
    )
