"""Pages and pictures that a command writes: their names, their sizes, and what is printed about them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from dptrace.commands.shared.output import print_written, progress, write_text
from dptrace.core.files import atomic_write
from dptrace.readers.source import is_url, last_part, redact


def write_page(path: Path, draw: Callable[[], str], verbosity: str) -> None:
    """Draw a page with progress, write it, and print its size."""
    with progress("Drawing", verbosity, measured=False):
        page = draw()
    write_text(path, page)
    print_written(path, verbosity)


def write_png(drawn: str, path: Path, width: int) -> None:
    """Write an SVG as a PNG of this width.

    Raises:
        DptraceError: there is no Chromium.
    """
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
