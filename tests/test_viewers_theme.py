"""The palette: complete, readable, and told apart by colour-blind readers."""

from __future__ import annotations

from itertools import combinations

import pytest

from dptrace.split import Part
from dptrace.viewers import theme


def luminance(color: str) -> float:
    """Give the relative luminance of WCAG 2."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """Give the contrast ratio of WCAG 2."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_part_has_a_colour_and_a_name() -> None:
    """A part without its own colour or name would be drawn as another."""
    assert set(Part) == set(theme.PART_COLORS) == set(theme.PART_LABELS) == set(theme.PART_ORDER)
    assert len(set(theme.PART_LABELS.values())) == len(Part)


def test_no_two_things_share_a_colour() -> None:
    """Seven parts and overlapped communication make eight colours."""
    assert len({*theme.PART_COLORS.values(), theme.OVERLAPPED}) == len(Part) + 1


@pytest.mark.parametrize("color", [*theme.PART_COLORS.values(), theme.OVERLAPPED])
def test_text_on_every_colour_can_be_read(color: str) -> None:
    """The ink of each colour reaches 4:1, for labels of 11 px and more in a bar."""
    assert contrast(color, theme.ink_on(color)) >= 4


def test_parts_of_one_lane_differ_in_lightness() -> None:
    """In a grey print the neighbours of a step are still told apart."""
    neighbours = [Part.FORWARD, Part.BACKWARD, Part.EXPOSED_COMM]
    for a, b in combinations(neighbours, 2):
        assert contrast(theme.PART_COLORS[a], theme.PART_COLORS[b]) > 1.5
