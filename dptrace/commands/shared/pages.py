"""Pages and pictures that a command writes: their names, their sizes, and what is printed about them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dptrace.commands.shared.output import emit, json_text, print_hint, print_tables, write_text
from dptrace.commands.shared.progress import progress
from dptrace.core.files import atomic_write
from dptrace.core.units import byte_size
from dptrace.readers.sources.url import is_url, last_part, redact

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.viewers.base.marks import Drawing

__all__ = ["DRAWN", "file_stem", "svg_height", "write_answer", "write_page", "write_picture"]

DRAWN = (".html", ".svg", ".png")
"""Names of files into which an answer is drawn: a page or a chart."""
_WIDTH = 1200


def write_page(path: Path, draw: Callable[[], str], verbosity: str) -> None:
    """Draw a page with progress, write it, and print its size."""
    with progress("Drawing", verbosity, measured=False):
        page = draw()
    write_text(path, page)
    print_hint(f"Wrote {path} ({byte_size(len(page.encode()))}).", verbosity)


def write_answer(
    content: object,
    output: Path | None,
    as_json: bool,
    verbosity: str,
    *,
    show: Callable[[Console], None],
    page: Callable[[], str],
    chart: Callable[[], Drawing],
    width: int = _WIDTH,
) -> None:
    """Print an answer as text or JSON, or write it to a file: the name of the file chooses a page, a chart or text.

    Raises:
        DptraceError: a PNG is asked for, and there is no Chromium.
    """
    suffix = "" if output is None else output.suffix.lower()
    if as_json:
        emit(json_text(content), output)
    elif output is not None and suffix == ".html":
        write_page(output, page, verbosity)
        return
    elif output is not None and suffix in DRAWN:
        from dptrace.viewers.base.svg_renderer import svg

        write_picture(svg(chart()), output, width)
    else:
        print_tables(show, output)
    if output is not None:
        print_hint(f"Wrote {output}.", verbosity)


def write_picture(drawn: str, path: Path, width: int) -> None:
    """Write an SVG as it is, or as a PNG of this width, by the suffix.

    Raises:
        DptraceError: a PNG is asked for, and there is no Chromium.
    """
    if path.suffix.lower() == ".svg":
        write_text(path, drawn)
        return
    from dptrace.viewers.base.screenshot import screenshot, svg_page

    with atomic_write(path) as temporary:
        screenshot(svg_page(drawn), temporary, (width, svg_height(drawn, width)))


def file_stem(path: str) -> str:
    """Return a run's name in letters that are safe in file names."""
    last = last_part(redact(path)) if is_url(path) else Path(path).absolute().name
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in last).lstrip(".")[:60] or "run"


def svg_height(drawn: str, width: int) -> int:
    """Return the height of an SVG that is shown *width* pixels wide."""
    match = re.search(r'width="([\d.]+)" height="([\d.]+)"', drawn)
    assert match
    return round(float(match[2]) * width / float(match[1]))
