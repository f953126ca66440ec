"""``dptrace view``: the per-GPU Gantt chart, as a page or in the terminal."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dptrace.commands.shared.options import Selection, force_option, gains_option, opening_options, run_options
from dptrace.commands.shared.output import OutputFile, console, quoted_paths
from dptrace.commands.shared.pages import file_stem, write_page
from dptrace.commands.shared.reading import gains_wanted, open_with_progress, with_gains
from dptrace.commands.shared.view_options import (
    FigureOptions,
    PictureOptions,
    ServeOptions,
    figure_options,
    open_browser,
    picture_options,
    serve_options,
)
from dptrace.errors import DptraceError, UsageError
from dptrace.load.options import ReadOptions
from dptrace.readers.source import is_url

if TYPE_CHECKING:
    from dptrace.run.run import Run
    from dptrace.viewers.gantt.chart import Chart

_ONE_FILE = (
    "--critical-path is drawn on the Gantt page of one run in one file: leave --text, --against, --view, --svg, --png, "
    "--figure and --serve out. --ranks and --steps make a page smaller."
)


_EXAMPLES = """\b
Examples:
  dptrace view runs/ddp --ranks 0,1 --steps 4:6
  dptrace view runs/naive --against runs/interleaved
  dptrace view runs/ddp --critical-path
  dptrace view runs/ddp --text
  dptrace view runs/ddp --view breakdown --svg breakdown.svg
  dptrace view runs/ddp --figure step.pdf --annotate
"""


@click.command(epilog=_EXAMPLES)
@run_options
@click.option("-o", "--output", type=OutputFile(), help="Write the page to this file.")
@force_option
@click.option("--no-browser", is_flag=True, help="Write the page without opening it.")
@click.option("--text", is_flag=True, help="Draw in the terminal instead; useful over SSH.")
@click.option("--against", metavar="RUN", help="Draw this run below RUN on the same axis, with the time that it saves.")
@click.option(
    "--align",
    type=click.Choice(("step", "start")),
    help="Align two runs at each pair of steps, or only at the first. [step]",
)
@gains_option
@click.option(
    "--critical-path",
    is_flag=True,
    help="Mark what sets the length of a step: that of --steps, or of median length.",
)
@serve_options
@picture_options
@figure_options
@opening_options
def command(
    paths: tuple[str, ...],
    selection: Selection,
    output: Path | None,
    force: bool,
    no_browser: bool,
    text: bool,
    against: str | None,
    align: str | None,
    gains: bool | None,
    critical_path: bool,
    serve: ServeOptions,
    picture: PictureOptions,
    figure: FigureOptions,
    read_options: ReadOptions,
    verbosity: str,
) -> None:
    """Draw RUN as a Gantt chart: for each GPU its phases, compute, communication and memory over time.

    RUN is a run folder, trace files (one for each rank), a folder or a glob of traces. The page is one file that needs
    no network. Without -o it is opened in the browser, or served to it if it is too large for a file.

    Views are gantt, summary, breakdown, heatmap, communication, bandwidth, buckets, kernels, layers, idle, memory,
    pipeline, roofline and findings.
    """
    _check(output, text, force, against, align, picture, figure, serve, gains, critical_path)
    runs = [open_with_progress(paths, read_options, verbosity, selection)]
    runs += [open_with_progress((against,), read_options, verbosity, selection)] if against is not None else []
    by_step = align != "start"
    if figure.requested:
        figure.write(runs[0], selection, verbosity)
    elif picture.requested:
        picture.write(runs, by_step, verbosity)
    elif text:
        _print(runs, by_step, picture)
    else:
        runs = _with_gains(runs, picture, gains, paths, verbosity)
        gantt_chart = _gantt_chart(runs, output, picture)
        if gantt_chart is not None and not critical_path and (serve.requested or _too_large(gantt_chart)):
            serve.serve(runs[0], gantt_chart, _index_entry(runs[0], read_options, selection), not no_browser, verbosity)
            return
        shown = (*paths, *(("--against", against) if against is not None else ()))
        page = output or _cached_page_path((*shown, *("--critical-path",) * critical_path))
        write_page(page, lambda: _document(runs, by_step, picture, gantt_chart, critical_path), verbosity)
        if output is None and not no_browser:
            _show(page, shown)


def _check(
    output: Path | None,
    text: bool,
    force: bool,
    against: str | None,
    align: str | None,
    picture: PictureOptions,
    figure: FigureOptions,
    serve: ServeOptions,
    gains: bool | None,
    critical_path: bool,
) -> None:
    """Refuse options that do not go together, before any work."""
    if align is not None and against is None:
        raise UsageError("--align needs a second run; name it with --against RUN.")
    if critical_path and (text or against or serve.requested or not picture.is_plain or figure.requested):
        raise UsageError(_ONE_FILE)
    pictured = text or picture.requested or figure.requested or not picture.is_gantt
    if gains and (pictured or against is not None):
        raise UsageError("--gains is about the findings above the Gantt page of one run; leave it out here.")
    picture.check(output, text, force, against is not None)
    page_only = output is None and not text and not picture.requested and picture.is_gantt and against is None
    figure.check(not page_only or serve.requested, force)
    serve.check(not page_only or figure.requested)


def _print(runs: list[Run], by_step: bool, picture: PictureOptions) -> None:
    """Draw one run or two in the terminal; a pipe or a file gets 80 columns, or COLUMNS."""
    if not picture.is_gantt:
        picture.print(runs[0])
        return
    from dptrace.viewers.terminal import gantt as terminal

    screen = console(piped_width=terminal.DEFAULT_WIDTH)
    if len(runs) == 2:
        terminal.print_pair(runs[0], runs[1], screen, by_step)
    else:
        terminal.print_gantt(runs[0], screen)


def _with_gains(
    runs: list[Run], picture: PictureOptions, gains: bool | None, paths: tuple[str, ...], verbosity: str
) -> list[Run]:
    """Return the runs with what a step would gain without each finding, where the page shows findings."""
    if len(runs) == 1 and picture.is_gantt and gains_wanted(gains, paths):
        return [with_gains(runs[0], verbosity)]
    return runs


def _gantt_chart(runs: list[Run], output: Path | None, picture: PictureOptions) -> Chart | None:
    """Lay out the Gantt chart of one run that is shown without -o, and may have to be served; else None."""
    if len(runs) > 1 or output is not None or not picture.is_gantt:
        return None
    from dptrace.viewers.gantt.chart import chart

    return chart(runs[0])


def _index_entry(run: Run, read_options: ReadOptions, selection: Selection) -> Path | None:
    """Return the file in the cache that keeps the index of a run's chart; None without a cache."""
    from dptrace.load.rank_file import index_entry

    if not read_options.cache or run.sources is None:
        return None
    ranks = None if selection.ranks is None else sorted(selection.ranks)
    key = (read_options.comm_patterns, read_options.strict, ranks, selection.steps)
    return index_entry([*run.sources.files, *filter(None, [run.sources.run_file])], key)


def _too_large(gantt_chart: Chart) -> bool:
    from dptrace.viewers.gantt.page.document import MAX_INTERVALS

    return len(gantt_chart) > MAX_INTERVALS


def _document(
    runs: list[Run], by_step: bool, picture: PictureOptions, gantt_chart: Chart | None, critical_path: bool
) -> str:
    """Draw one run or two as a page."""
    if gantt_chart is not None or critical_path:
        from dptrace.api import critical_path as path_of
        from dptrace.viewers.gantt.page import document as gantt

        return gantt.document(runs[0], gantt_chart, path=path_of(runs[0]) if critical_path else None)
    if len(runs) == 1:
        return picture.document(runs[0])
    from dptrace.viewers.gantt.page import pair as pair_page

    return pair_page.document(runs[0], runs[1], by_step)


def _cached_page_path(paths: tuple[str, ...]) -> Path:
    """Return the page's path in the cache folder: one for each run, so that viewing it twice leaves one file."""
    from dptrace.core.files import cache_folder

    folder = cache_folder() / "pages"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DptraceError(f"{folder}: can't be created: {error.strerror}. Name a file: -o page.html.") from None
    key = "\0".join(path if is_url(path) else str(Path(path).absolute()) for path in paths)
    return folder / f"{file_stem(paths[0])}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.html"


def _show(page: Path, arguments: tuple[str, ...]) -> None:
    """Open the page, or print how to view it where no browser can be opened."""
    if open_browser(page.as_uri()):
        return
    click.echo(
        "No browser could be opened here. Copy the file to a machine that has one (scp), "
        f"or draw in the terminal: dptrace view {quoted_paths(arguments)} --text",
        err=True,
    )
