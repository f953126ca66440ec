"""The palette: complete, readable, and distinguishable for colour-blind readers."""

from __future__ import annotations

from itertools import combinations

import pytest

from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.analysis.per_gpu.labels import CAUSE_LABELS, PART_LABELS
from dptrace.analysis.per_gpu.split import Part
from dptrace.viewers.base import theme


def luminance(color: str) -> float:
    """Return the relative luminance of WCAG 2."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """Return the contrast ratio of WCAG 2."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_part_has_a_colour_and_a_name() -> None:
    """A part without its own colour or name would be drawn as another."""
    assert set(Part) == set(theme.PART_COLORS) == set(PART_LABELS) == set(theme.PART_ORDER)
    assert len(set(PART_LABELS.values())) == len(Part)


def test_no_two_things_share_a_colour() -> None:
    """Seven parts, overlapped communication and waiting make nine colours."""
    assert len({*theme.PART_COLORS.values(), theme.OVERLAPPED, theme.WAITING}) == len(Part) + 2


@pytest.mark.parametrize(
    "color", [*theme.PART_COLORS.values(), theme.OVERLAPPED, theme.WAITING, *theme.CAUSE_COLORS.values()]
)
def test_text_on_every_colour_can_be_read(color: str) -> None:
    """The ink of each colour reaches the 4.5:1 of WCAG 2."""
    assert contrast(color, theme.ink_on(color)) >= 4.5


@pytest.mark.parametrize(
    "color", [*theme.PART_COLORS.values(), theme.OVERLAPPED, theme.WAITING, *theme.CAUSE_COLORS.values()]
)
def test_a_dark_page_can_be_read(color: str) -> None:
    """Every colour has a dark twin or is its own; its ink can be read on it, and it stands out of the page."""
    shown, ink = theme.DARK.get(color, (color, theme.ink_on(color)))

    assert contrast(shown, ink) >= 4.5
    # Idle is what lies behind the rest: it need not stand out.
    assert contrast(shown, theme.CHROME["dark"]["paper"]) >= (1.2 if color == theme.IDLE else 3)


@pytest.mark.parametrize("name", ["light", "dark"])
@pytest.mark.parametrize(
    ("ink", "paper"),
    [
        *((ink, paper) for ink in ("text", "quiet", "alarm", "focus", "mark") for paper in ("paper", "raised")),
        ("text", "warn"),
        ("strip-ink", "strip"),
        ("strip-ink", "strip-odd"),
        ("tip-text", "tip"),
        ("tip-quiet", "tip"),
    ],
)
def test_the_page_s_own_text_can_be_read(name: str, ink: str, paper: str) -> None:
    """Light and dark, each kind of text reaches 4.5:1 on each ground on which it stands."""
    assert contrast(theme.CHROME[name][ink], theme.CHROME[name][paper]) >= 4.5


def test_light_and_dark_name_the_same_things() -> None:
    """Or a property of one would be left over in the other."""
    assert theme.CHROME["light"].keys() == theme.CHROME["dark"].keys()
    assert all(f"--{key}: {value};" in theme.css() for key, value in theme.CHROME["dark"].items())


def test_every_cause_of_idling_has_a_colour_and_a_name() -> None:
    """A cause without its own would be drawn as another."""
    assert list(CAUSES) == list(theme.CAUSE_COLORS) == list(CAUSE_LABELS)
    assert len({*theme.CAUSE_COLORS.values()}) == len(CAUSES)


def test_parts_of_one_lane_differ_in_lightness() -> None:
    """The parts next to each other are distinguishable in a grey print."""
    neighbours = [Part.FORWARD, Part.BACKWARD, Part.EXPOSED_COMM]
    for a, b in combinations(neighbours, 2):
        assert contrast(theme.PART_COLORS[a], theme.PART_COLORS[b]) > 1.5
