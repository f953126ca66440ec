"""Drawings as SVG."""

from __future__ import annotations

from dptrace.viewers.drawing_svg import WIDTH, legend_svg, svg
from tests.view_cases import drawn


def test_svg_shows_every_mark() -> None:
    """And writes of a box' texts the first that fits."""
    text = svg(drawn())

    words = "title", "subtitle", "a tip", ">short<", "beside", "before", "row", "rows", "red"
    for shown in (*words, "<circle", "<polygon"):
        assert shown in text
    assert "too long" not in text
    assert ">title</text>" not in svg(drawn(), heading=False)
    assert f'width="{WIDTH}"' in legend_svg(drawn())
