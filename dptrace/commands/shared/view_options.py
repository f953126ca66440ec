"""Options of dptrace view: pictures, figures and served pages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.answer import check_file, form_of
from dptrace.commands.shared.numbers import Whole
from dptrace.commands.shared.options import Selection, field_of, group
from dptrace.commands.shared.output import OutputFile, console, print_hint, print_written, progress, write_text
from dptrace.commands.shared.pages import svg_height, write_png
from dptrace.core.files import atomic_write, check_output
from dptrace.errors import UsageError
from dptrace.viewers.views.names import NAMES

if TYPE_CHECKING:
    from dptrace.run.run import Run
    from dptrace.viewers.gantt.chart import Chart

__all__ = [
    "FigureOptions",
    "PictureOptions",
    "ServeOptions",
    "figure_options",
    "open_browser",
    "parse_size",
    "picture_options",
    "serve_options",
]


# The options of ``dptrace view`` that choose a view and write it as a picture.


GANTT = "gantt"
_DEFAULT_WIDTH, _MIN_HEIGHT, _MAX_SIZE = 1600, 400, 16_000
"""Of a PNG in pixels; Chromium draws nothing larger."""
_GANTT_HEADER_HEIGHT = 270
"""Pixels above the rows of the Gantt chart."""
_PAIR_HEADER_HEIGHT = 370
"""The same for two runs, which have a line and figures each."""

_PICTURE_OPTIONS = {".png": "--png", ".svg": "--svg", ".pdf": "--figure"}
"""The option that writes a picture with such a suffix."""


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """Which view to draw, and as which file."""

    view: str = GANTT
    svg: Path | None = None
    png: Path | None = None
    size: tuple[int, int] | None = None

    @property
    def requested(self) -> bool:
        """Whether a picture is requested."""
        return self.svg is not None or self.png is not None

    @property
    def is_gantt(self) -> bool:
        """Whether the view is the Gantt chart."""
        return self.view == GANTT

    @property
    def is_plain(self) -> bool:
        """Whether the page of the Gantt chart is asked for, and no picture."""
        return self.is_gantt and not self.requested

    def check(self, output: Path | None, text: bool, force: bool, pair: bool) -> None:
        """Refuse combinations that can't work, and files that would be overwritten, before any work.

        Raises:
            UsageError: the message says what to do instead.
        """
        if text and output is not None:
            raise UsageError("--text draws in the terminal; leave -o out, or redirect it: --text > view.txt.")
        if self.size is not None and self.png is None:
            raise UsageError("--size is the size of a PNG; add --png FILE.")
        if self.requested and (text or output is not None):
            raise UsageError("--svg and --png write a picture; leave -o and --text out, or run the command twice.")
        if pair and (self.svg is not None or not self.is_gantt):
            raise UsageError("--against draws two Gantt charts, as page, --png or --text; leave --view and --svg out.")
        for path, kind in ((self.svg, "svg"), (self.png, "png")):
            if path is not None:
                check_file(path, force, (kind,))
        if output is not None:
            if option := _PICTURE_OPTIONS.get(output.suffix.lower()):
                raise UsageError(f"-o writes a page, named .html. For a picture use: {option} {output}")
            check_file(output, force, ("html",))

    def print(self, run: Run) -> None:
        """Print the view's table in the terminal."""
        from dptrace.viewers.views.registry import VIEWS, print_view

        print_view(VIEWS[self.view], run, console())

    def document(self, run: Run) -> str:
        """Draw the view as a page."""
        from dptrace.viewers.pages.view import document
        from dptrace.viewers.views.registry import VIEWS

        return document(VIEWS[self.view], run)

    def write(self, runs: Sequence[Run], by_step: bool, verbosity: str) -> None:
        """Write the pictures of one run, or of two on one axis, aligned at each pair of steps if *by_step*."""
        from dptrace.viewers.base.screenshot import screenshot

        with progress("Drawing", verbosity, measured=False):
            drawn = self._drawn(runs[0]) if self.svg is not None or not self.is_gantt else ""
            if self.svg is not None:
                write_text(self.svg, drawn)
            if self.png is not None:
                page, fitting = self._page(runs, by_step, drawn)
                with atomic_write(self.png) as temporary:
                    screenshot(page, temporary, self.size or fitting)
                # Smaller rows could not be read.
                if self.is_gantt and self.size is not None and self.size[1] < fitting[1]:
                    height = self.size[1]
                    print_hint(
                        f"! {height} pixels do not fit every row: use {fitting[1]}, or fewer --ranks.", verbosity
                    )
        for path in filter(None, (self.svg, self.png)):
            print_written(path, verbosity)

    def _drawn(self, run: Run) -> str:
        from dptrace.viewers.pages.view import picture
        from dptrace.viewers.views.registry import VIEWS

        return picture(VIEWS[self.view], run)

    def _page(self, runs: Sequence[Run], by_step: bool, drawn: str) -> tuple[str, tuple[int, int]]:
        """Return a page with the picture, and the size that fits all of it."""
        if len(runs) == 2:
            from dptrace.viewers.gantt.page import pair as pair_page

            height = min(pair_page.rows_height(*runs) + _PAIR_HEADER_HEIGHT, _MAX_SIZE)
            return pair_page.document(runs[0], runs[1], by_step), (_DEFAULT_WIDTH, height)
        if self.is_gantt:
            # A picture has the rows that its size was computed for, and nobody to unfold others.
            return self.document(replace(runs[0], rereader=None)), _gantt_size(runs[0])
        from dptrace.viewers.base.screenshot import svg_page

        width = self.size[0] if self.size else _DEFAULT_WIDTH
        return svg_page(drawn), (width, min(svg_height(drawn, width), _MAX_SIZE))


def _gantt_size(run: Run) -> tuple[int, int]:
    """Return a size that shows every row."""
    from dptrace.viewers.gantt.chart import chart
    from dptrace.viewers.gantt.page.data import layout

    return _DEFAULT_WIDTH, min(max(int(layout(chart(run))["height"]) + _GANTT_HEADER_HEIGHT, _MIN_HEIGHT), _MAX_SIZE)


def parse_size(text: str) -> tuple[int, int]:
    """Parse ``1600x900``.

    Raises:
        UsageError: the text is not a size, or one that no browser draws.
    """
    match = re.fullmatch(r"\s*(\d{1,5})\s*[x×]\s*(\d{1,5})\s*", text)
    if not match or not all(200 <= int(side) <= _MAX_SIZE for side in match.groups()):
        raise UsageError(
            f"--size {text}: expected width and height, 200 to {_MAX_SIZE:,} pixels, for example 1600x900."
        )
    return int(match[1]), int(match[2])


_PICTURE_FIELD = field_of("picture", PictureOptions())


def _view(ctx: click.Context, param: click.Parameter, value: str) -> None:
    if value == "list" and not ctx.resilient_parsing:
        for name, about in NAMES.items():
            click.echo(f"{name:<14} {about}")
        ctx.exit()
    _PICTURE_FIELD["callback"](ctx, param, value)


_VIEW: dict[str, Any] = {"type": click.Choice([*NAMES, "list"]), "default": GANTT, "metavar": "NAME", "is_eager": True}
_VIEW_HELP = "What to show, as a page, --text, --svg or --png; list describes them. [gantt]"
_SIZE = "Size of the PNG in pixels: 1600x900. [1600 wide, all rows]"
_PNG = "Write a PNG picture, drawn by an installed Chromium."
picture_options = group(
    click.option("--view", callback=_view, expose_value=False, help=_VIEW_HELP, **_VIEW),
    click.option("--svg", type=OutputFile(), help="Write an SVG picture; needs no browser.", **_PICTURE_FIELD),
    click.option("--png", type=OutputFile(), help=_PNG, **_PICTURE_FIELD),
    click.option("--size", type=parse_size, metavar="WxH", help=_SIZE, **_PICTURE_FIELD),
)
"""--view, --svg, --png and --size, as one argument *picture*."""


# The options of ``dptrace view`` that write a figure for papers and slides.


_FORMS = ("svg", "pdf", "png")
_DENSITY = 3
"""Pixels of a PNG for each pixel of the figure."""


@dataclass(frozen=True, slots=True)
class FigureOptions:
    """Which file to write, and how the figure looks."""

    figure: Path | None = None
    figure_width: int | None = None
    annotate: bool = False

    @property
    def requested(self) -> bool:
        """Whether a figure is requested."""
        return self.figure is not None

    def check(self, other_output: bool, force: bool) -> None:
        """Refuse combinations that can't work, and a file that would be overwritten, before any work.

        Args:
            other_output: whether another picture, view, page, server or second run is requested.

        Raises:
            UsageError: the message says what to do instead.
        """
        if self.figure is None:
            if self.annotate or self.figure_width is not None:
                option = "--annotate" if self.annotate else "--figure-width"
                raise UsageError(f"{option} changes a figure; add --figure FILE.")
            return
        if self.figure_width is not None:
            from dptrace.viewers.pages.gantt_svg import FIGURE_WIDTHS

            FIGURE_WIDTHS.check(self.figure_width, "--figure-width")
        form_of(self.figure, _FORMS)
        if other_output:
            raise UsageError(
                "--figure draws the Gantt chart of one run into one file; leave -o, --text, --view, --svg, --png, "
                "--serve and --against out, or run the command twice."
            )
        check_output(self.figure, force)

    def write(self, run: Run, selection: Selection, verbosity: str) -> None:
        """Write the figure of a run that was cut to *selection*."""
        from dptrace.viewers.pages.gantt_svg import FIGURE_WIDTH, figure_svg

        path, width = self.figure, FIGURE_WIDTH if self.figure_width is None else self.figure_width
        assert path is not None
        with progress("Drawing", verbosity, measured=False):
            drawn = figure_svg(run, selection.steps is not None, selection.ranks is not None, width, self.annotate)
            form = form_of(path, _FORMS)
            if form == "pdf":
                _write_pdf(drawn, path, width)
            elif form == "png":
                write_png(drawn, path, _DENSITY * width)
            else:
                write_text(path, drawn)
        print_written(path, verbosity)


def _write_pdf(drawn: str, path: Path, width: int) -> None:
    from dptrace.viewers.base.screenshot import write_pdf

    with atomic_write(path) as temporary:
        write_pdf(drawn, temporary, (width, svg_height(drawn, width)))


_FIGURE_FIELD = field_of("figure", FigureOptions())
_FIGURE = "Write a figure for papers and slides: .svg, .pdf or .png, in large type."
_ANNOTATE = "Number the top findings in the figure and write them below."
_WIDTH = "Width of the figure; a narrow one has larger type. [640]"
figure_options = group(
    click.option("--figure", type=OutputFile(), help=_FIGURE, **_FIGURE_FIELD),
    click.option("--figure-width", type=Whole(), metavar="PIXELS", help=_WIDTH, **_FIGURE_FIELD),
    click.option("--annotate", is_flag=True, help=_ANNOTATE, **_FIGURE_FIELD),
)
"""--figure, --figure-width and --annotate, as one argument *figure*."""


# The options of ``dptrace view`` that serve a page instead of writing a file.


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Whether and where a page is served."""

    serve_requested: bool = False
    host: str | None = None
    port: int | None = None

    @property
    def requested(self) -> bool:
        """Whether a server is requested, by any of its options."""
        return self.serve_requested or self.host is not None or self.port is not None

    def check(self, other: bool) -> None:
        """Refuse combinations that can't work, before any work.

        Args:
            other: whether a file, the terminal, another view than the Gantt chart, or two runs are requested.

        Raises:
            UsageError: the message says what to do instead.
        """
        if self.requested and other:
            raise UsageError(
                "--serve, --host and --port serve the Gantt page of one run and can't be combined with -o, --text, "
                "--view, --against, --svg or --png."
            )

    def serve(self, run: Run, gantt_chart: Chart, entry: Path | None, browser: bool, verbosity: str) -> None:
        """Serve a run's page until its tab is closed or Ctrl-C is pressed.

        Args:
            entry: the file in the cache that keeps the chart's index; None for none.
        """
        from dptrace.viewers.gantt.host import HostAnswers
        from dptrace.viewers.gantt.page.document import served
        from dptrace.viewers.gantt.page.server import LOOPBACK, PageServer
        from dptrace.viewers.gantt.tiles.service import TileService

        with progress("Drawing", verbosity, measured=False):
            drawn = served(run, gantt_chart, entry, host=True)
        answers = {"host": HostAnswers(run, gantt_chart)}
        service, host = TileService(drawn.store), self.host or LOOPBACK
        server = PageServer(drawn.page, drawn.files, service, host, self.port or 0, answers)
        try:
            self._print_address(server, verbosity)
            if browser:
                open_browser(server.url)
            server.wait()
        except KeyboardInterrupt:
            click.echo("", err=True)
        finally:
            server.close()

    def _print_address(self, server: Any, verbosity: str) -> None:
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
        print_hint("Serving until the page's tab is closed, or Ctrl-C.", verbosity)


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


_SERVE = "Serve the page until its tab is closed; always for very large runs without -o."
_HOST = "Address of this machine to serve at. [127.0.0.1: this machine only]"
_SERVED_FIELD = field_of("serve", ServeOptions())
serve_options = group(
    click.option("--serve", "serve_requested", is_flag=True, help=_SERVE, **_SERVED_FIELD),
    click.option("--port", type=Whole(1, 65535), metavar="N", help="Port to serve at. [a free one]", **_SERVED_FIELD),
    click.option("--host", metavar="ADDRESS", help=_HOST, **_SERVED_FIELD),
)
"""--serve, --port and --host, as one argument *serve*."""
