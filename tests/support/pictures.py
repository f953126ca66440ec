"""Pictures in files: what draws them, and their size."""

from __future__ import annotations

import struct
from importlib.util import find_spec

import pytest

png_test = pytest.mark.skipif(find_spec("resvg_py") is None, reason="resvg-py is not installed: pip install resvg-py")
pdf_test = pytest.mark.skipif(find_spec("svglib") is None, reason="svglib is not installed: pip install svglib")


def size_of(png: bytes) -> tuple[int, int]:
    """Return width and height of a PNG."""
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height
