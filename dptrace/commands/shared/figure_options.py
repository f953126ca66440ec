"""The options of ``dptrace view`` that write a figure for papers and slides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dptrace.commands.shared.answer import form_of
from dptrace.commands.shared.numbers import Whole
from dptrace.commands.shared.options import Selection, field_of, group
from dptrace.commands.shared.output import OutputFile, print_written, write_text
from dptrace.commands.shared.pages import svg_height, write_png
from dptrace.commands.shared.progress import progress
from dptrace.core.files import atomic_write, check_output
from dptrace.errors import UsageError

if TYPE_CHECKING:
    from dptrace.run.run import Run

__all__ = ["FigureOptions", "figure_options"]

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
            from dptrace.viewers.gantt.svg.figure import FIGURE_WIDTHS

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
        from dptrace.viewers.gantt.svg.figure import FIGURE_WIDTH, figure_svg

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


_FIELD = field_of("figure", FigureOptions())
_FIGURE = "Write a figure for papers and slides: .svg, .pdf or .png, in large type."
_ANNOTATE = "Number the top findings in the figure and write them below."
_WIDTH = "Width of the figure; a narrow one has larger type. [640]"
figure_options = group(
    click.option("--figure", type=OutputFile(), help=_FIGURE, **_FIELD),
    click.option("--figure-width", type=Whole(), metavar="PIXELS", help=_WIDTH, **_FIELD),
    click.option("--annotate", is_flag=True, help=_ANNOTATE, **_FIELD),
)
"""--figure, --figure-width and --annotate, as one argument *figure*."""
