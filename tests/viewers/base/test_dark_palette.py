"""Colours on a dark page."""

from __future__ import annotations

import pytest

from dptrace.viewers.base import theme
from dptrace.viewers.base.theme import dark_color, dark_ink
from dptrace.viewers.views import collectives
from tests.support.color_vision import contrast

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
    """The palette's inks go with its dark colours."""
    assert contrast(dark_color(color), dark_ink(color, theme.ink_on(color))) >= 4.5
