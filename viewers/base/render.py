"""Render an SVG of ours as PNG or PDF, without a browser.

Text is set in the fonts of ``fonts/``, so that a machine needs none. A letter that they lack is taken from one of the
machine's own fonts in a PNG, and is a box in a PDF.
"""

from __future__ import annotations

import re
from functools import cache
from io import StringIO
from pathlib import Path

from dptrace.errors import DptraceError, MissingExtraError

_FONT, _FOLDER = "dptrace Sans", Path(__file__).parent / "fonts"
_FILES = {"normal": str(_FOLDER / "sans.ttf"), "700": str(_FOLDER / "sans-bold.ttf")}
"""The file of each weight."""
_MOST_PIXELS = 256_000_000
"""Of a PNG: they take 1 GB while it is drawn."""
_SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)"')


def check_png() -> None:
    """Check, before any work, that a PNG can be drawn after it.

    Raises:
        DptraceError: a package is missing.
    """
    try:
        import resvg_py  # noqa: F401
    except ImportError:
        install = "pip install 'resvg-py>=0.4'"
        raise DptraceError(f"A PNG needs resvg-py, which is not installed. Install it with: {install}") from None


def png(drawn: str, width: int, height: int | None = None) -> bytes:
    """Draw an SVG as PNG of this size in pixels: as large as fits, in the middle of white.

    Args:
        height: None is as high as a picture of this width is.

    Raises:
        DptraceError: a package is missing, or the PNG is too large.
    """
    check_png()
    import resvg_py

    own = _SIZE.search(drawn)
    assert own
    height = height or max(round(float(own[2]) * width / float(own[1])), 1)
    if width * height > _MOST_PIXELS:
        raise DptraceError(f"A PNG of {width:,} × {height:,} pixels is too large. Choose fewer ranks, or write an SVG.")
    drawn = _SIZE.sub(f'width="{width}" height="{height}"', drawn, count=1)
    drawn = drawn.replace('font-family="', f'font-family="{_FONT}, ', 1)
    return bytes(resvg_py.svg_to_bytes(svg_string=drawn, background="#FFFFFF", font_files=[*_FILES.values()]))


def pdf(drawn: str) -> bytes:
    """Draw an SVG as PDF of one page without margins; its text stays text.

    Raises:
        MissingExtraError: a package is missing.
    """
    try:
        from reportlab.graphics import renderPDF
        from svglib.svglib import svg2rlg
    except ImportError:
        raise MissingExtraError("A PDF needs svglib", "pdf") from None
    _register_fonts()
    drawn = re.sub('font-family="[^"]*"', f'font-family="{_FONT}"', drawn, count=1)
    return bytes(renderPDF.drawToString(svg2rlg(StringIO(drawn))))


@cache
def _register_fonts() -> None:
    from svglib.svglib import register_font

    for weight, file in _FILES.items():
        register_font(_FONT, file, weight=weight)
