"""The options of ``dptrace view`` that choose a view and write it as a picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.answer import check_file
from dptrace.commands.shared.options import field_of, group
from dptrace.commands.shared.output import OutputFile, console, print_hint, print_written, write_text
from dptrace.commands.shared.pages import svg_height
from dptrace.commands.shared.progress import progress
from dptrace.core.files import atomic_write
from dptrace.errors import UsageError
from dptrace.viewers.views.names import NAMES

if TYPE_CHECKING:
    from dptrace.run.run import Run

__all__ = ["PictureOptions", "parse_size", "picture_options"]

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
            from dptrace.viewers.gantt.pair import page as pair_page

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


_FIELD = field_of("picture", PictureOptions())


def _view(ctx: click.Context, param: click.Parameter, value: str) -> None:
    if value == "list" and not ctx.resilient_parsing:
        for name, about in NAMES.items():
            click.echo(f"{name:<14} {about}")
        ctx.exit()
    _FIELD["callback"](ctx, param, value)


_VIEW: dict[str, Any] = {"type": click.Choice([*NAMES, "list"]), "default": GANTT, "metavar": "NAME", "is_eager": True}
_VIEW_HELP = "What to show, as a page, --text, --svg or --png; list describes them. [gantt]"
_SIZE = "Size of the PNG in pixels: 1600x900. [1600 wide, all rows]"
_PNG = "Write a PNG picture, drawn by an installed Chromium."
picture_options = group(
    click.option("--view", callback=_view, expose_value=False, help=_VIEW_HELP, **_VIEW),
    click.option("--svg", type=OutputFile(), help="Write an SVG picture; needs no browser.", **_FIELD),
    click.option("--png", type=OutputFile(), help=_PNG, **_FIELD),
    click.option("--size", type=parse_size, metavar="WxH", help=_SIZE, **_FIELD),
)
"""--view, --svg, --png and --size, as one argument *picture*."""
