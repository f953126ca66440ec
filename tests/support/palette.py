"""The palette as it is drawn: the colors of a light and a dark page, and which of them stand in one row."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.analysis.per_gpu.split import Part
from dptrace.viewers.base import theme
from tests.support.color_vision import VISIONS, contrast, distance, lab, lightness, linear_rgb, seen

_PARTS = [part.name.lower() for part in theme.PART_ORDER if part != Part.IDLE]
ROWS: dict[str, list[str]] = {
    "phases": [*_PARTS, "waiting"],
    "communication": ["exposed_comm", "waiting", "overlapped"],
    "idle causes": list(CAUSES),
    "legend": [*_PARTS, "waiting", "overlapped"],
}
"""The names of the colors that one row of the chart, or the legend, holds."""


@dataclass(frozen=True)
class Look:
    """One color of a page, and what lies behind it."""

    name: str
    color: str
    ink: str
    pattern: str
    paper: str
    idle: str


def looks(page: str) -> list[Look]:
    """Return the colors of a page, ``light`` or ``dark``, without idle time, which lies behind the others."""
    named = {part.name.lower(): color for part, color in theme.PART_COLORS.items() if part != Part.IDLE}
    named |= {"overlapped": theme.OVERLAPPED, "waiting": theme.WAITING, **theme.CAUSE_COLORS}
    light = page == "light"
    paper, idle = theme.CHROME[page]["paper"], theme.IDLE if light else theme.DARK[theme.IDLE][0]
    shown = {name: (color, theme.ink_on(color)) if light else theme.DARK[color] for name, color in named.items()}
    return [Look(name, color, ink, theme.PATTERNS.get(color, ""), paper, idle) for name, (color, ink) in shown.items()]


def _pairs(page: str, row: str) -> list[tuple[Look, Look]]:
    return list(combinations([look for look in looks(page) if look.name in ROWS[row]], 2))


def apart(page: str, row: str, vision: str) -> dict[tuple[str, str], float]:
    """Return the CIEDE2000 distance of each two colors of a row, as a kind of color vision sees them."""
    return {
        (a.name, b.name): float(distance(*(lab(seen(linear_rgb(look.color), vision)) for look in (a, b))))
        for a, b in _pairs(page, row)
    }


def alike_in_grey(page: str, row: str, least: float) -> list[tuple[str, str]]:
    """Return the pairs of a row that a grey print does not tell apart: one pattern or none, similar lightness."""
    return [
        (a.name, b.name)
        for a, b in _pairs(page, row)
        if a.pattern == b.pattern and abs(lightness(a.color) - lightness(b.color)) < least
    ]


def proposed(page: str, row: str) -> tuple[str, str, float]:
    """Return a color for one more thing in a row, the color of text on it, and its least distance from the others.

    Of a grid of colors with enough contrast to text, page and idle time, it is the one farthest from the others, for
    whatever vision it is nearest to one of them. Without a pattern its lightness in a grey print differs, too.
    """
    own = [look for look in looks(page) if look.name in ROWS[row]]
    light = page == "light"
    grid = ["#" + "".join(f"{channel:02X}" for channel in color) for color in product(range(0, 256, 17), repeat=3)]
    plain = [lightness(look.color) for look in own if not look.pattern] if light else []
    found = []
    for color in grid:
        ink = "#FFFFFF" if light and contrast(color, "#FFFFFF") >= 4.5 else "#000000"
        shades = contrast(color, ink) / 4.5, contrast(color, own[0].paper) / 3, contrast(color, own[0].idle) / 3
        if min(shades) >= 1 and all(abs(lightness(color) - other) >= 5 for other in plain):
            found.append((color, ink))
    least = np.full(len(found), np.inf)
    for vision in VISIONS:
        points = np.array([lab(seen(linear_rgb(color), vision)) for color, _ in found])
        for look in own:
            least = np.minimum(least, distance(points, lab(seen(linear_rgb(look.color), vision))))
    best = int(least.argmax())
    return *found[best], float(least[best])
