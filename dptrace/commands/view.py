"""``dptrace view``: the per-GPU Gantt chart and the other views, as a page, in the terminal, as pictures, or served."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.answer import HTML, PDF, PNG, SVG, Answer, Destination, file_options, refuse
from dptrace.commands.shared.numbers import Whole
from dptrace.commands.shared.options import (
    Selection,
    align_option,
    opening_options,
    run_options,
)
from dptrace.commands.shared.output import NORMAL, QUIET, console, file_stem, print_hint, progress, quoted_paths
from dptrace.commands.shared.reading import open_with_progress, with_findings
from dptrace.errors import DptraceError, UsageError
from dptrace.load.options import ReadOptions
from dptrace.readers.source import is_url
from dptrace.viewers.views.names import NAMES

if TYPE_CHECKING:
    from dptrace.run.run import Run
    from dptrace.viewers.gantt.chart import Chart

_GANTT, _FINDINGS = "gantt", "findings"
_DEFAULT_WIDTH, _MAX_SIZE = 1600, 16_000
"""Of a PNG in pixels."""
_FOLLOW_S = 2.0
"""How often the page of a watched run is drawn anew."""
_FIGURE_DENSITY = 3
"""Pixels of a PNG for each pixel of the figure."""
_PICTURES = (SVG, PNG, PDF)

_PATH_ALONE = (
    "--critical-path is drawn on the Gantt page of one run: leave --text, --against, --view, --figure, --serve and "
    "pictures out. --ranks and --steps make a page smaller."
)
MOST_RUNS = 8
"""Runs on one axis."""
_TWO = "Three or more runs are drawn as a page: leave --text and pictures out, or name one run with --against."
_FIGURE_ALONE = "--figure draws the Gantt chart of one run; leave --text, --view, --serve and --against out."
_SERVED_ALONE = (
    "--serve, --host and --port serve the Gantt page of one run and can't be combined with -o, --text, --view or "
    "--against."
)


@dataclass(frozen=True, slots=True)
class _Options:
    """What to show, and where."""

    to: Destination
    no_browser: bool
    text: bool
    against: tuple[str, ...]
    align_steps: str | None
    critical_path: bool
    serve: bool
    port: int | None
    host: str | None
    view: str
    size: tuple[int, int] | None
    figure: bool
    figure_width: int | None
    annotate: bool

    @property
    def is_gantt(self) -> bool:
        """Whether the view is the Gantt chart."""
        return self.view == _GANTT

    @property
    def has_page(self) -> bool:
        """Whether a page is asked for: by its name, or by nothing else."""
        return self.to.has(HTML) or not (self.text or self.to.targets)

    @property
    def has_findings(self) -> bool:
        """Whether findings are shown: with the Gantt chart of one run, in its figure if asked for, or on their own."""
        if self.view == _FINDINGS or self.figure:
            return self.view == _FINDINGS or self.annotate
        return self.is_gantt and not self.against and (self.text or self.has_page)

    @property
    def served(self) -> bool:
        """Whether a server is asked for, by any of its options."""
        return self.serve or self.host is not None or self.port is not None

    @property
    def by_step(self) -> bool:
        """Whether two runs are aligned at each pair of steps."""
        return self.align_steps != "start"

    def contradictions(self) -> Iterator[tuple[object, str]]:
        """Yield whether options contradict each other, and what to do instead."""
        pair = bool(self.against)
        other_than_page = self.text or not self.is_gantt or pair
        yield self.align_steps is not None and not pair, "--align needs a second run; name it with --against RUN."
        yield (
            self.critical_path and (other_than_page or self.served or self.figure or self.to.has(*_PICTURES)),
            _PATH_ALONE,
        )
        yield self.served and (other_than_page or self.to.targets), _SERVED_ALONE
        yield self.figure and (other_than_page or self.served), _FIGURE_ALONE
        yield self.figure and (self.has_page or self.size), "--figure is a picture: add -o FILE.svg, .pdf or .png."
        yield self.annotate and not self.figure, "--annotate changes a figure; add --figure."
        yield self.figure_width is not None and not self.figure, "--figure-width changes a figure; add --figure."
        yield self.size is not None and not self.to.has(PNG), "--size is the size of a PNG; add -o FILE.png."
        yield pair and not self.is_gantt, "--against draws Gantt charts; leave --view out."
        yield len(self.against) > 1 and (self.text or self.to.has(*_PICTURES)), _TWO
        yield len(self.against) >= MOST_RUNS, f"A page holds {MOST_RUNS} runs at most; name fewer with --against."


def _check_width(width: int | None) -> None:
    if width is not None:
        from dptrace.viewers.pages.gantt_svg import FIGURE_WIDTHS

        FIGURE_WIDTHS.check(width, "--figure-width")


class _View(click.Command):
    """The command, whose --figure once took the file's name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [part for word in args for part in (word.split("=", 1) if word.startswith("--figure=") else [word])]
        for place in range(len(words) - 1):
            if words[place] == "--figure" and words[place + 1].lower().endswith((".svg", ".pdf", ".png")):
                words.insert(place + 1, "-o")
                quiet = {"-q", "--quiet"} & {*words}
                print_hint("--figure FILE is now --figure -o FILE.", QUIET if quiet else NORMAL)
                break
        return super().parse_args(ctx, words)


def parse_size(text: str) -> tuple[int, int]:
    """Parse ``1600x900``.

    Raises:
        UsageError: the text is not a size, or too small or large.
    """
    match = re.fullmatch(r"\s*(\d{1,5})\s*[x×]\s*(\d{1,5})\s*", text)
    if not match or not all(200 <= int(side) <= _MAX_SIZE for side in match.groups()):
        raise UsageError(
            f"--size {text}: expected width and height, 200 to {_MAX_SIZE:,} pixels, for example 1600x900."
        )
    return int(match[1]), int(match[2])


def _list_views(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value == "list" and not ctx.resilient_parsing:
        for name, about in NAMES.items():
            click.echo(f"{name:<14} {about}")
        ctx.exit()
    return value


_VIEW: dict[str, Any] = {"type": click.Choice([*NAMES, "list"]), "default": _GANTT, "metavar": "NAME", "is_eager": True}
_VIEW_HELP = "What to show; list describes them. [gantt]"
_OPENED = " [a page, opened in the browser]"
_AGAINST = "Draw this run below RUN on one axis, with the time that it saves; may be repeated."
_ALIGN = "Align two runs at each pair of steps, or only at the first. [step]"
_PATH = "Mark what sets the length of a step: that of --steps, or of median length."
_SERVE = "Serve the page until its tab is closed; always for very large runs without -o."
_HOST = "Address of this machine to serve at. [127.0.0.1: this machine only]"
_SIZE = "Size of the PNG in pixels: 1600x900. [1600 wide, all rows]"
_FIGURE = "Draw the picture for papers and slides: a step in large type."
_WIDTH = "Width of the figure; a narrow one has larger type. [640]"
_ANNOTATE = "Number the top findings in the figure and write them below."
_EXAMPLES = """\b
Examples:
  dptrace view runs/ddp --ranks 0,1 --steps 4:6
  dptrace view runs/naive --against runs/interleaved --against runs/ddp
  dptrace view runs/ddp --critical-path
  dptrace view runs/ddp --text
  dptrace view runs/ddp --view breakdown -o breakdown.svg -o breakdown.html
  dptrace view runs/ddp --figure --annotate -o step.pdf
"""


@click.command(cls=_View, epilog=_EXAMPLES)
@run_options
@file_options(HTML, *_PICTURES, aliases={"svg": SVG, "png": PNG}, about=_OPENED)
@click.option("--no-browser", is_flag=True, help="Write the page without opening it.")
@click.option("--text", is_flag=True, help="Draw in the terminal instead; useful over SSH.")
@click.option("--against", metavar="RUN", multiple=True, help=_AGAINST)
@click.option("--align", "align_steps", type=click.Choice(("step", "start")), help=_ALIGN)
@click.option("--critical-path", is_flag=True, help=_PATH)
@click.option("--serve", is_flag=True, help=_SERVE)
@click.option("--port", type=Whole(1, 65535), metavar="N", help="Port to serve at. [a free one]")
@click.option("--host", metavar="ADDRESS", help=_HOST)
@click.option("--view", callback=_list_views, help=_VIEW_HELP, **_VIEW)
@click.option("--size", type=parse_size, metavar="WxH", help=_SIZE)
@click.option("--figure", is_flag=True, help=_FIGURE)
@click.option("--figure-width", type=Whole(), metavar="PIXELS", help=_WIDTH)
@click.option("--annotate", is_flag=True, help=_ANNOTATE)
@align_option
@opening_options
def command(
    paths: tuple[str, ...], selection: Selection, read_options: ReadOptions, verbosity: str, **shown: Any
) -> None:
    """Draw RUN as a Gantt chart: for each GPU its phases, compute, communication and memory over time.

    RUN is a run folder, trace files (one for each rank), a folder or a glob of traces. The page is one file that needs
    no network. Without -o it is opened in the browser, or served to it if it is too large for a file.

    Of a watched run (dptrace watch), the page has its verdict, step time, and lateness by rank and step; --serve lets
    it follow the run.

    Views are gantt, summary, nodes, breakdown, heatmap, communication, bandwidth, buckets, kernels, layers, idle,
    memory, pipeline, roofline and findings.
    """
    options = _Options(**shown)
    refuse(options.contradictions())
    _check_width(options.figure_width)
    from dptrace.readers.formats import is_watched

    if len(paths) == 1 and is_watched(paths[0]):
        _show_watch(Path(paths[0]), options, selection, read_options)
        return
    replayed = options.has_findings or options.critical_path
    runs = [
        open_with_progress(
            paths,
            read_options,
            verbosity,
            selection,
            replayed,
            all_ranks=False,
            may_be_known=not options.critical_path,
        )
    ]
    if options.has_findings:
        runs = [with_findings(runs[0], verbosity)]
    runs += [open_with_progress((path,), read_options, verbosity, selection) for path in options.against]
    if options.to.targets:
        options.to.write(_answer(runs, options, selection))
    if options.text:
        _print(runs, options)
    elif not options.to.targets:
        _show_page(runs, options, paths, read_options, selection, verbosity)


def _answer(runs: Sequence[Run], options: _Options, selection: Selection) -> Answer:
    """Return the page and the pictures of one run that was cut to *selection*, or of several."""
    from dptrace.viewers.pages.gantt_svg import FIGURE_WIDTH, figure_svg, pair_svg
    from dptrace.viewers.pages.view import picture
    from dptrace.viewers.views.registry import VIEWS

    @cache
    def drawn() -> str:
        if options.figure:
            chosen = selection.steps is not None, selection.ranks is not None
            return figure_svg(runs[0], *chosen, figure_width, options.annotate)
        if len(runs) == 2:
            return pair_svg(runs[0], runs[1], options.by_step, size[0])
        return picture(VIEWS[options.view], runs[0], size[0])

    figure_width = options.figure_width or FIGURE_WIDTH
    size = (_FIGURE_DENSITY * figure_width,) if options.figure else options.size or (_DEFAULT_WIDTH,)
    return Answer({HTML: lambda: _document(runs, options), SVG: drawn, PNG: lambda: (drawn(), *size), PDF: drawn})


# Pages: written, opened in a browser, or served.


def _show_page(
    runs: list[Run],
    options: _Options,
    paths: tuple[str, ...],
    read_options: ReadOptions,
    selection: Selection,
    verbosity: str,
) -> None:
    """Keep the page and open it, or serve what is too large for a file."""
    gantt_chart = None
    if len(runs) == 1 and options.is_gantt:
        from dptrace.viewers.gantt.chart import chart
        from dptrace.viewers.gantt.page.document import MAX_INTERVALS

        run = runs[0]
        # Of a large run, the cache may have the chart's index.
        is_served = not options.critical_path and (options.served or sum(map(len, run.timelines)) > MAX_INTERVALS)
        gantt_chart = None if is_served or options.critical_path else chart(run)
        if is_served or (gantt_chart is not None and len(gantt_chart) > MAX_INTERVALS):
            _serve(run, gantt_chart, options, _index_entry(run, read_options, selection), verbosity)
            return
    shown = (*paths, *(word for path in options.against for word in ("--against", path)))
    page = _cached_page_path((*shown, *("--critical-path",) * options.critical_path))
    replace(options.to, targets=((HTML, page),)).write(Answer({HTML: lambda: _document(runs, options, gantt_chart)}))
    if not options.no_browser and not open_browser(page.as_uri()):
        # The terminal draws two runs at most.
        text = f"dptrace view {quoted_paths(shown[: len(paths) + 2])} --text"
        click.echo(
            "No browser could be opened here. Copy the file to a machine that has one (scp), "
            f"or draw in the terminal: {text}",
            err=True,
        )


def _show_watch(folder: Path, options: _Options, selection: Selection, read_options: ReadOptions) -> None:
    """Show the page about a watched run; served, it follows the run."""
    from dptrace.viewers.gantt.page.server import LOOPBACK, PageServer
    from dptrace.watch.follow import opened

    reads_otherwise = replace(read_options, cache=True, jobs=None) != ReadOptions()
    chosen = selection.ranks is not None or selection.steps is not None or reads_otherwise
    other = options.text or options.to.has(*_PICTURES) or options.against or options.critical_path
    if chosen or other or not options.is_gantt:
        raise UsageError(
            f"{folder} is a watched run, whose page takes -o, --serve, --host, --port and --no-browser. "
            f"As text: dptrace watch {folder}. Of its captures, name one: {folder}/capture1."
        )
    follower = opened(folder)
    if not options.served:
        page = Answer({HTML: follower.page})
        if options.to.targets:
            options.to.write(page)
            return
        path = _cached_page_path((str(folder),))
        replace(options.to, targets=((HTML, path),)).write(page)
        if not options.no_browser and not open_browser(path.as_uri()):
            click.echo(f"No browser could be opened here. As text: dptrace watch {folder}", err=True)
        return
    server = PageServer(follower.page(), host=options.host or LOOPBACK, port=options.port or 0)
    try:
        _print_address(server, "Serving until Ctrl-C.", options.to.verbosity)
        if not options.no_browser:
            open_browser(server.url)
        while True:
            time.sleep(_FOLLOW_S)
            if follower.poll():
                server.replace(follower.page())
    except KeyboardInterrupt:
        click.echo("", err=True)
    finally:
        server.close()


def _document(runs: Sequence[Run], options: _Options, gantt_chart: Chart | None = None) -> str:
    """Draw a run, or several on one axis, as a page."""
    if len(runs) > 1:
        from dptrace.viewers.gantt.page import pair as pair_page

        return pair_page.document(*runs, by_step=options.by_step)
    if gantt_chart is not None:
        from dptrace.viewers.gantt.page import document as gantt

        return gantt.document(runs[0], gantt_chart)
    from dptrace.viewers.pages.view import document
    from dptrace.viewers.views.registry import VIEWS

    path = None
    if options.critical_path:
        from dptrace.api import critical_path

        path = critical_path(runs[0])
    return document(VIEWS[options.view], runs[0], path=path)


def _index_entry(run: Run, read_options: ReadOptions, selection: Selection) -> Path | None:
    """Return the file in the cache that keeps the index of a run's chart; None without a cache."""
    from dptrace.load.rank_file import index_entry

    if not read_options.cache or run.sources is None:
        return None
    ranks = None if selection.ranks is None else sorted(selection.ranks)
    read = (read_options.patterns, read_options.strict, read_options.align)
    key = (*read, ranks, selection.steps, run.path)
    return index_entry([*run.sources.files, *filter(None, [run.sources.run_file])], key)


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


def _serve(run: Run, gantt_chart: Chart | None, options: _Options, entry: Path | None, verbosity: str) -> None:
    """Serve a run's page until its tab is closed or Ctrl-C is pressed.

    Args:
        gantt_chart: the run's chart, if it already exists.
        entry: the file in the cache that keeps the chart's index; None for none.
    """
    from dptrace.viewers.gantt.host import HostAnswers
    from dptrace.viewers.gantt.page.document import served
    from dptrace.viewers.gantt.page.pair import StepPages
    from dptrace.viewers.gantt.page.server import LOOPBACK, Answers, PageServer
    from dptrace.viewers.gantt.tiles.service import TileService

    with progress("Drawing", verbosity, measured=False):
        drawn = served(run, gantt_chart, entry, host=True)
    answers: Answers = {"host": HostAnswers(run), "steps": StepPages(run)}
    service, host = TileService(drawn.store), options.host or LOOPBACK
    server = PageServer(drawn.page, drawn.files, service, host, options.port or 0, answers)
    try:
        _print_address(server, "Serving until the page's tab is closed, or Ctrl-C.", verbosity)
        if not options.no_browser:
            open_browser(server.url)
        server.wait()
    except KeyboardInterrupt:
        click.echo("", err=True)
    finally:
        server.close()


def _print_address(server: Any, until: str, verbosity: str) -> None:
    from dptrace.viewers.gantt.page.server import LOOPBACK, tunnel

    click.echo(server.url)
    if server.host not in (LOOPBACK, "localhost", "::1"):
        click.echo(
            f"! Listening at {server.host}: anyone who has this address with its token can see the recording, and "
            "the connection is not encrypted.",
            err=True,
        )
    elif "SSH_CONNECTION" in os.environ:
        line = tunnel(os.environ["SSH_CONNECTION"], _user(), server.port)
        click.echo(f"From your own machine: {line}\nthen open the address above there.", err=True)
    print_hint(until, verbosity)


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "USER"


def open_browser(address: str) -> bool:
    """Open an address; return whether a browser could be opened."""
    import webbrowser

    # Without a display, webbrowser would find a text browser, which takes the terminal and runs no scripts.
    needs_display = sys.platform not in ("darwin", "win32") or "SSH_CONNECTION" in os.environ
    has_display = not needs_display or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return has_display and webbrowser.open(address)


def _print(runs: Sequence[Run], options: _Options) -> None:
    """Draw one run or two in the terminal; a pipe or a file gets 80 columns, or COLUMNS."""
    if not options.is_gantt:
        from dptrace.viewers.views.registry import VIEWS, print_view

        print_view(VIEWS[options.view], runs[0], console())
        return
    from dptrace.viewers.terminal import gantt as terminal

    screen = console(piped_width=terminal.DEFAULT_WIDTH)
    if len(runs) == 2:
        terminal.print_pair(runs[0], runs[1], screen, options.by_step)
    else:
        terminal.print_gantt(runs[0], screen)
