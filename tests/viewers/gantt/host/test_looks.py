"""The colors of host events: readable text, and visible on the page, light and dark."""

from __future__ import annotations

import pytest

from dptrace.timeline.host_calls import CallKind
from dptrace.viewers.base.theme import CHROME
from dptrace.viewers.gantt.host.looks import kind_looks


def luminance(color: str) -> float:
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("kind", CallKind)
def test_contrast_suffices(kind: CallKind) -> None:
    """Text on a call at least 4.5:1, a call on the page at least 3:1."""
    look = kind_looks()[kind]
    for name, colors in (("light", look), ("dark", look["dark"])):
        assert contrast(colors["color"], colors["ink"]) >= 4.5, name
        assert contrast(colors["color"], CHROME[name]["paper"]) >= 3, name


def test_every_kind_has_a_look_of_its_own() -> None:
    """A label and a color for each, in the order of the kinds."""
    looks = kind_looks()

    assert len(CallKind) == len({look["label"] for look in looks}) == len({look["color"] for look in looks})
