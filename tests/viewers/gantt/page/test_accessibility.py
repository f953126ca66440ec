"""The Gantt page for those who use a keyboard, a screen reader, or want less motion."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dptrace.viewers.gantt.page import document as gantt
from tests.support.browser import browser_test, open_page, until
from tests.support.gantt_page import row_box, settle, tip
from tests.support.synthetic import training_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CANVASES = """() => {
    const inside = (one) => [one, ...(one.shadowRoot ? all(one.shadowRoot) : [])];
    const all = (root) => [...root.querySelectorAll("*")].flatMap(inside);
    return all(document).filter((one) => one.localName === "canvas").map((one) =>
        one.ariaHidden === "true" ? "hidden" : `${one.role}: ${one.ariaLabel}`);
}"""
FOCUSED = """() => {
    const one = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(one);
    return [`${one.localName}#${one.id}.${one.className}`, outlineStyle, parseFloat(outlineWidth)];
}"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("accessible") / "two.html"
    path.write_text(gantt.document(training_run(400, ranks=2, steps=3)), encoding="utf-8")
    return path


def width_shown(page: Page) -> float:
    shown: float = page.evaluate("dptrace.main.range.to - dptrace.main.range.from")
    return shown


@pytest.mark.slow
@browser_test
def test_canvases_have_names_and_controls_show_the_focus(browser: Browser, two: Path) -> None:
    """The chart, with its GPUs and steps, and the overview; Bokeh's layers are hidden from screen readers. Each stop of
    the tab key has an outline of two pixels."""
    with open_page(browser, two) as (page, _):
        settle(page)
        named = [one for one in page.evaluate(CANVASES) if one != "hidden"]
        stops: dict[str, tuple[str, float]] = {}
        for _ in range(40):
            page.keyboard.press("Tab")
            name, style, width = page.evaluate(FOCUSED)
            if name.startswith("body"):
                break
            stops[name] = (style, width)

        assert any(one.startswith("img: Gantt chart of 2 GPUs and 3 steps") for one in named)
        assert any(one.startswith("img: Overview") for one in named)
        assert not any("null" in one for one in named)
        assert len(stops) > 5
        assert {} == {name: look for name, look in stops.items() if look[0] == "none" or look[1] < 2}


@pytest.mark.slow
@browser_test
def test_a_held_key_zooms_on_and_with_reduced_motion_by_bits(browser: Browser, two: Path) -> None:
    """The tooltip goes while the view moves and comes back when it rests; with reduced motion only a press moves."""
    with open_page(browser, two) as (page, _):
        settle(page)
        box = row_box(page, "phases")
        page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + box["height"] / 2)
        assert tip(page)
        page.keyboard.down("w")
        until(page, "document.querySelector('.tip').hidden", True)
        page.keyboard.up("w")
        until(page, "document.querySelector('.tip').hidden", False)

        page.emulate_media(reduced_motion="reduce")
        until(page, "matchMedia('(prefers-reduced-motion: reduce)').matches", True)
        page.keyboard.press("f")
        settle(page)
        whole = width_shown(page)
        page.keyboard.down("w")
        settle(page)
        once = width_shown(page)
        page.wait_for_timeout(150)
        settle(page)
        assert whole > once == width_shown(page)
        page.keyboard.up("w")
