"""PNG and PDF from an SVG."""

from __future__ import annotations

import functools
import io
import re
import sys

import numpy as np
import pytest

from dptrace.errors import DptraceError, install_command
from dptrace.viewers.base import theme
from dptrace.viewers.base.render import pdf, png
from dptrace.viewers.base.svg import Canvas
from tests.support.pictures import pdf_test, png_test, size_of


def drawing() -> str:
    """Draw text of both weights, with letters of other scripts, and a hatched box."""
    canvas = Canvas(200, 100, "test")
    canvas.text(10, 20, "Backward 18.8 ms → “é” Ж λ", bold=True)
    canvas.text(190, 48, "rank 1", size=10, upright=True)
    canvas.rect(0, 50, 200, 50, theme.EXPOSED)
    return canvas.finish()


def pixels(data: bytes) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    return np.array(image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.heavy
@png_test
def test_a_png_has_the_size_asked_for_and_all_of_the_drawing() -> None:
    """As high as it needs, or as large as fits, in the middle of white."""
    assert (400, 200) == size_of(png(drawing(), 400))
    assert (400, 1000) == size_of(png(drawing(), 400, 1000))
    shown = pixels(png(drawing(), 400, 1000))

    assert (shown[:400] == 255).all()
    assert (shown[600:] == 255).all()
    assert (shown[500:600] != 255).any(axis=2).all()
    assert len(np.unique(shown[550], axis=0)) > 2  # a hatch


@png_test
def test_text_needs_none_of_the_machines_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With those of the machine hidden, the same is drawn; without any, there would be no text."""
    import resvg_py

    usual, draw = png(drawing(), 400), resvg_py.svg_to_bytes
    monkeypatch.setattr(resvg_py, "svg_to_bytes", functools.partial(draw, skip_system_fonts=True))

    assert usual == png(drawing(), 400)
    assert (pixels(usual)[:100] < 128).any()


@pytest.mark.heavy
@pdf_test
def test_a_pdf_has_one_page_of_the_drawings_size_and_its_text() -> None:
    """The text is text in embedded fonts, and patterns are shapes: a printer would enlarge images."""
    written = pdf(drawing())

    assert 1 == len(re.findall(rb"/Type\s*/Page\b", written))
    assert re.search(rb"/MediaBox \[\s*0 0 150 75\s*\]", written)
    assert 2 == len(re.findall(rb"/FontFile2", written))
    assert not re.search(rb"/Subtype\s*/Image", written)


@pytest.mark.heavy
def test_what_is_missing_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a PNG, and of a PDF."""
    for package in ("resvg_py", "svglib", "svglib.svglib"):
        monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(DptraceError, match="pip install 'resvg-py"):
        png(drawing(), 400)
    with pytest.raises(DptraceError, match=re.escape(install_command("pdf"))):
        pdf(drawing())


@png_test
def test_a_png_that_would_fill_the_memory_is_refused() -> None:
    """Before it is drawn."""
    with pytest.raises(DptraceError, match="too large"):
        png(drawing(), 100_000)
