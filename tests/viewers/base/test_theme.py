"""The palette: complete, readable, and distinguishable for colour-blind readers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dptrace.analysis.per_gpu.causes import CAUSES, IDLE_CAUSES
from dptrace.analysis.per_gpu.split import PART_LABELS, Part
from dptrace.viewers.base import theme
from dptrace.viewers.base.svg import svg
from dptrace.viewers.base.theme import dark_color, picture_css
from dptrace.viewers.views import collectives
from tests.support.color_vision import VISIONS, contrast, distance
from tests.support.palette import ROWS, Look, alike_in_grey, apart, looks
from tests.support.view_cases import drawn

PAGES = ["light", "dark"]
IDLE = {"light": (theme.IDLE, theme.ink_on(theme.IDLE)), "dark": theme.DARK[theme.IDLE]}
SHARMA = [
    ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
    ((50.0, 2.5, 0.0), (50.0, 0.0, -2.5), 4.3065),
    ((50.0, 2.49, -0.001), (50.0, -2.49, 0.0009), 7.1792),
    ((50.0, 2.49, -0.001), (50.0, -2.49, 0.0011), 7.2195),
    ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
    ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    ((50.0, 0.0, 0.0), (50.0, -1.0, 2.0), 2.3669),
]
"""Two colours in CIELAB and their distance."""


def test_every_part_has_a_colour_and_a_name() -> None:
    """A part or cause of idling without its own would be drawn as another; light and dark pages name the same."""
    assert set(Part) == set(theme.PART_COLORS) == set(PART_LABELS) == set(theme.PART_ORDER)
    assert len(set(PART_LABELS.values())) == len(Part)
    assert len({*theme.PART_COLORS.values(), theme.OVERLAPPED, theme.WAITING}) == len(Part) + 2
    assert len({*theme.CAUSE_COLORS.values()}) == len({cause.label for cause in IDLE_CAUSES}) == len(CAUSES)
    assert theme.CHROME["light"].keys() == theme.CHROME["dark"].keys()
    assert all(f"--{key}: {value};" in theme.css() for key, value in theme.CHROME["dark"].items())


def test_text_on_every_colour_can_be_read() -> None:
    """The ink of each colour reaches the 4.5:1 of WCAG 2."""
    for page in PAGES:
        idle = [Look("idle", *IDLE[page], "", "", "")]

        assert [] == [look for look in (*looks(page), *idle) if contrast(look.color, look.ink) < 4.5], page


def test_every_colour_stands_out_of_what_is_behind_it() -> None:
    """By 3:1 from the page, as WCAG 2 asks of graphics, and from idle time, beside or over which it is drawn."""
    for page in PAGES:
        assert [] == [look for look in looks(page) if contrast(look.color, look.paper) < 3], page
        assert [] == [look for look in looks(page) if contrast(look.color, look.idle) < 3], page


@pytest.mark.heavy
def test_no_two_colours_of_a_row_look_alike() -> None:
    """Not to readers with protanopia, deuteranopia or tritanopia either: at least 11 times what is just noticeable
    in one row of the chart, 9 in the legend, which has rows side by side."""
    for vision in VISIONS:
        for row in ROWS:
            for page in PAGES:
                least = 9 if row == "legend" else 11

                assert {} == {pair: d for pair, d in apart(page, row, vision).items() if d < least}, vision


def test_a_grey_print_distinguishes_the_colours_of_a_row() -> None:
    """By lightness, or by pattern."""
    for row in [row for row in ROWS if row != "legend"]:
        for page in PAGES:
            assert [] == alike_in_grey(page, row, 5), (row, page)


def test_distances_are_those_of_the_paper() -> None:
    """Pairs from the test data of Sharma, Wu and Dalal: near grey, opposite hues, blue, and far apart."""
    for a, b, expected in SHARMA:
        assert expected == pytest.approx(float(distance(a, b)), abs=5e-5), a


def test_what_a_search_turns_grey_can_still_be_seen() -> None:
    """The search keeps the lightness of what is no hit; the texts on it can still be read."""
    for page in PAGES:
        for look in looks(page):
            if look.name in CAUSES:  # their row is not searched
                continue
            grey = np.array([0.3, 0.59, 0.11]) @ [int(look.color[i : i + 2], 16) for i in (1, 3, 5)]
            color = "#" + f"{round(float(grey)):02X}" * 3
            assert contrast(color, look.paper) >= 3, look
            assert contrast(color, look.ink) >= 4.5, look


def test_the_page_s_own_text_can_be_read() -> None:
    """Light and dark, each kind of text reaches 4.5:1 on each ground on which it stands."""
    for name in ("light", "dark"):
        for ink, paper in (
            *((ink, paper) for ink in ("text", "quiet", "alarm", "focus", "mark") for paper in ("paper", "raised")),
            ("text", "warn"),
            ("strip-ink", "strip"),
            ("strip-ink", "strip-odd"),
            ("quiet", "strip"),
            ("tip-text", "tip"),
            ("tip-quiet", "tip"),
        ):
            assert contrast(theme.CHROME[name][ink], theme.CHROME[name][paper]) >= 4.5, name


# Colors of pictures on a dark page.


def test_texts_and_dots_are_seen_on_dark() -> None:
    """Texts by 4.5 to 1, dots by 3 to 1."""
    for color, least in (
        *((color, 4.5) for color in ("#111827", "#374151", "#5B6472")),
        *((color, 3) for color, _ in collectives._LOOKS),
    ):
        assert contrast(dark_color(color), theme.CHROME["dark"]["paper"]) >= least, (color, least)


def test_texts_in_boxes_are_read() -> None:
    """The dark twin of a text's color goes with that of its fill; white on a fill becomes black."""
    for color in (*theme.PART_COLORS.values(), *theme.CAUSE_COLORS.values()):
        ink = {"#FFFFFF": "#000000"}.get(theme.ink_on(color), dark_color(theme.ink_on(color)))

        assert contrast(dark_color(color), ink) >= 4.5, color


def test_every_color_of_a_picture_has_a_dark_one() -> None:
    """The style sheet names each color that a picture uses, as fill and as stroke; black and the legend's are kept."""
    rules = picture_css()
    used = set(re.findall(r'(?:fill|stroke)="(#[0-9A-F]{6})"', svg(drawn())))

    assert len(used) > 5
    for color in used:
        assert f'[fill="{color}"]' in rules
        assert f'[stroke="{color}"]' in rules
