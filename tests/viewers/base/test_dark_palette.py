"""Colours on a dark page."""

from __future__ import annotations

import re

import pytest

from dptrace.viewers.base import theme
from dptrace.viewers.base.svg import svg
from dptrace.viewers.base.theme import dark_color, picture_css
from dptrace.viewers.views import collectives
from tests.support.color_vision import contrast
from tests.support.view_cases import drawn

PAPER = theme.CHROME["dark"]["paper"]


@pytest.mark.parametrize("color", ["#111827", "#374151", "#5B6472"])
def test_texts_are_read_on_dark(color: str) -> None:
    """At least 4.5 to 1."""
    assert contrast(dark_color(color), PAPER) >= 4.5


@pytest.mark.parametrize("color", [color for color, _ in collectives._LOOKS])
def test_dots_are_seen_on_dark(color: str) -> None:
    """At least 3 to 1."""
    assert contrast(dark_color(color), PAPER) >= 3


@pytest.mark.parametrize("color", [*theme.PART_COLORS.values(), *theme.CAUSE_COLORS.values()])
def test_texts_in_boxes_are_read(color: str) -> None:
    """The dark twin of a text's color goes with that of its fill; white on a fill becomes black."""
    ink = {"#FFFFFF": "#000000"}.get(theme.ink_on(color), dark_color(theme.ink_on(color)))

    assert contrast(dark_color(color), ink) >= 4.5


def test_every_color_of_a_picture_has_a_dark_one() -> None:
    """The style sheet names each color that a picture uses, as fill and as stroke; black and the legend's are kept."""
    rules = picture_css()
    used = set(re.findall(r'(?:fill|stroke)="(#[0-9A-F]{6})"', svg(drawn())))

    assert len(used) > 5
    for color in used:
        assert f'[fill="{color}"]' in rules
        assert f'[stroke="{color}"]' in rules
