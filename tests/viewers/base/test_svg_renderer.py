"""Drawings as SVG."""

from __future__ import annotations

from dataclasses import replace

from dptrace.viewers.base.svg_renderer import WIDTH, legend_svg, svg
from tests.support.view_cases import drawn


def test_svg_shows_every_mark() -> None:
    """And writes of a box' texts the first that fits."""
    text = svg(drawn())

    words = "title", "subtitle", "a tip", ">short<", "beside", "before", "row", "rows", "red"
    for shown in (*words, "<circle", "<polygon"):
        assert shown in text
    assert "too long" not in text
    assert ">title</text>" not in svg(drawn(), heading=False)
    assert f'width="{WIDTH}"' in legend_svg(drawn())


def test_a_tall_picture_has_its_ticks_above_too() -> None:
    """A low one has them below only; and a run's name stands above its heading."""
    low, tall = drawn(), replace(drawn(), height=900)
    label = low.x.ticks[-1][1]

    assert 1 == svg(low).count(f">{label}</text>")
    assert 2 == svg(tall).count(f">{label}</text>")
    assert svg(low, run="my run").index("my run") < svg(low, run="my run").index(">title</text>")


def test_dark_colors_are_given_to_a_page_only() -> None:
    """A picture for slides is as it is."""
    assert "--n:" in svg(drawn(), dark=True)
    assert "--n:" not in svg(drawn())
