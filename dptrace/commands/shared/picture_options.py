"""The options of ``dptrace view`` that choose a view and a file for slides, and what they do."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from dptrace.commands.shared.output import OutputFile
from dptrace.commands.shared.shared import console, print_hint, progress
from dptrace.core.files import atomic_write, check_output
from dptrace.errors import UsageError
from dptrace.viewers.views.names import NAMES

if TYPE_CHECKING:
    from dptrace.run.run import Run

__all__ = ["PictureOptions", "parse_size", "picture_options"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

GANTT = "gantt"
_USUAL_WIDTH, _LEAST_HEIGHT, _MOST = 1600, 400, 16_000
"""Of a PNG in pixels; Chromium draws none that is larger."""
_ABOVE_GANTT = 270
"""Height in pixels of what stands above the Gantt chart."""
_ABOVE_PAIR = 370
"""The same of two runs, which have a line and figures each."""


_OTHERS = frozenset((".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".pdf", ".html"))


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """Which view is wanted, and as which file."""

    view: str = GANTT
    svg: Path | None = None
    png: Path | None = None
    size: tuple[int, int] | None = None

    @property
    def requested(self) -> bool:
        """Tell whether a file for slides is asked for."""
        return self.svg is not None or self.png is not None

    @property
    def is_gantt(self) -> bool:
        """Tell whether it is the Gantt chart."""
        return self.view == GANTT

    def check(self, output: Path | None, text: bool, force: bool, pair: bool) -> None:
        """Refuse before any work what makes no sense, and what would overwrite a file.

        Raises:
            UsageError: with what to do instead.
        """
        if text and output is not None:
            raise UsageError("--text draws in the terminal; leave -o out, or redirect: --text > view.txt.")
        if self.size is not None and self.png is None:
            raise UsageError("--size is the size of a PNG; add --png FILE.")
        if self.requested and (text or output is not None):
            raise UsageError("--svg and --png write a picture; leave -o and --text out, or run it again for those.")
        if pair and (self.svg is not None or not self.is_gantt):
            raise UsageError("--against draws two Gantt charts, as page, --png or --text; leave out --view and --svg.")
        for path, kind in ((self.svg, "svg"), (self.png, "png")):
            if path is not None and path.suffix.lower() in _OTHERS - {f".{kind}"}:
                raise UsageError(f"--{kind} writes {kind.upper()}, and {path.name} names something else: x.{kind}.")
        for path in filter(None, (output, self.svg, self.png)):
            check_output(path, force)

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
        """Write the files for slides: of one run, or of two on one axis, each pair of steps beginning together."""
        if len(runs) == 2:
            self._write_pair(runs[0], runs[1], by_step, verbosity)
        else:
            self._write_one(runs[0], verbosity)

    def _write_one(self, run: Run, verbosity: str) -> None:
        from dptrace.viewers.pages.view import picture
        from dptrace.viewers.views.registry import VIEWS

        view = VIEWS[self.view]
        with progress("Drawing", verbosity, measured=False):
            drawn = picture(view, run) if self.svg is not None or view.draw is not None else ""
            if self.svg is not None:
                with atomic_write(self.svg) as temporary:
                    temporary.write_text(drawn, encoding="utf-8")
            if self.png is not None:
                self._write_png(drawn, run, self.png, verbosity)
        for path in filter(None, (self.svg, self.png)):
            print_hint(f"Wrote {path} ({path.stat().st_size / 1e3:,.0f} kB).", verbosity)

    def _write_pair(self, a: Run, b: Run, by_step: bool, verbosity: str) -> None:
        from dptrace.viewers.base.screenshot import screenshot
        from dptrace.viewers.gantt import pair_page

        assert self.png is not None
        with progress("Drawing", verbosity, measured=False):
            page, height = pair_page.document(a, b, by_step), pair_page.rows_height(a, b)
            fitting = _USUAL_WIDTH, min(height + _ABOVE_PAIR, _MOST)
            with atomic_write(self.png) as temporary:
                screenshot(page, temporary, self.size or fitting)
        self._warn(fitting, verbosity)
        print_hint(f"Wrote {self.png} ({self.png.stat().st_size / 1e3:,.0f} kB).", verbosity)

    def _write_png(self, drawn: str, run: Run, path: Path, verbosity: str) -> None:
        from dptrace.viewers.base.screenshot import screenshot

        page, fitting = (self.document(run), _gantt_size(run)) if self.is_gantt else _framed(drawn, self.size)
        with atomic_write(path) as temporary:
            screenshot(page, temporary, self.size or fitting)
        if self.is_gantt:
            self._warn(fitting, verbosity)

    def _warn(self, fitting: tuple[int, int], verbosity: str) -> None:
        """Say that rows lie below the lower edge; they are not made smaller, for nobody could read them."""
        if self.size is not None and self.size[1] < fitting[1]:
            print_hint(f"! {self.size[1]} pixels do not hold every row: {fitting[1]} do, or fewer --ranks.", verbosity)


def _gantt_size(run: Run) -> tuple[int, int]:
    """Give a size that shows every row."""
    from dptrace.viewers.gantt.chart import chart
    from dptrace.viewers.gantt.page_data import layout

    return _USUAL_WIDTH, min(max(int(layout(chart(run))["height"]) + _ABOVE_GANTT, _LEAST_HEIGHT), _MOST)


def _framed(drawn: str, size: tuple[int, int] | None) -> tuple[str, tuple[int, int]]:
    """Put an SVG on a page of its own, as wide as the page; give the page and the size that fits."""
    from dptrace.viewers.base.screenshot import framed

    found = re.search(r'width="([\d.]+)" height="([\d.]+)"', drawn)
    assert found
    width = size[0] if size else _USUAL_WIDTH
    height = min(round(float(found[2]) * width / float(found[1])), _MOST)
    return framed(drawn), (width, height)


def parse_size(text: str) -> tuple[int, int]:
    """Read ``1600x900``.

    Raises:
        UsageError: it is no such size, or one that no browser draws.
    """
    match = re.fullmatch(r"\s*(\d{1,5})\s*[x×]\s*(\d{1,5})\s*", text)
    if not match or not all(200 <= int(side) <= _MOST for side in match.groups()):
        raise UsageError(f"--size {text}: give width and height in pixels, 200 to {_MOST:,}: for example 1600x900.")
    return int(match[1]), int(match[2])


def _list(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value == "list" and not ctx.resilient_parsing:
        for name, about in NAMES.items():
            click.echo(f"{name:<14} {about}")
        ctx.exit()
    return value


def picture_options(function: Decorated) -> Decorated:
    """Add --view, --svg, --png and --size, as one argument *picture*."""

    @functools.wraps(function)
    def with_picture(*args: Any, view: str, svg: Path | None, png: Path | None, size: str | None, **rest: Any) -> Any:
        return function(*args, picture=PictureOptions(view, svg, png, parse_size(size) if size else None), **rest)

    options = (
        click.option(
            "--view",
            type=click.Choice([*NAMES, "list"]),
            default=GANTT,
            is_eager=True,
            callback=_list,
            help="What to show, as a page, --text, --svg or --png; list tells what each is. [gantt]",
        ),
        click.option("--svg", type=OutputFile(), help="Write a static picture for slides, which needs no browser."),
        click.option("--png", type=OutputFile(), help="Write a picture of the page, drawn by an installed Chromium."),
        click.option("--size", metavar="WxH", help="Size of the PNG in pixels: 1600x900. [all of it, 1600 wide]"),
    )
    for option in reversed(options):
        with_picture = option(with_picture)
    return cast(Decorated, with_picture)
