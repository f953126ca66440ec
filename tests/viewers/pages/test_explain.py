"""An explanation in Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dptrace.simulate.catalog import ENTRIES
from dptrace.viewers.pages.explain import Explained, document
from tests.support.browser import browser_test, emulate, open_page, until
from tests.support.explanations import explained

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_it_has_steps_text_and_pages(tmp_path: Path) -> None:
    """A notebook's frame holds the page that save writes, and print shows the terminal's text."""
    shown = Explained(explained("ring", 3, 6e6))
    shown.save(tmp_path / "ring.html")

    assert 4 == len(shown.steps)
    assert (8e6,) * 3 == shown.cost.sent_bytes
    assert "Step 4 of 4" in str(shown)
    assert "3 ranks, 4 steps" in repr(shown)
    assert "NumPy" in shown.checked
    assert 4 == len(shown.to_dict()["steps"])
    assert "<svg" in (tmp_path / "ring.html").read_text()
    assert 'sandbox="allow-scripts"' in shown._repr_html_()


# The animated page of an explanation.


@pytest.mark.heavy
def test_a_page_loads_nothing() -> None:
    """It has no address, and its policy allows its own script only."""
    for name in ENTRIES:
        page = document(explained(name, 4))

        assert not re.search(r'(?:src|href)="(?!#)', page), name
        assert "default-src &#39;none&#39;" in page, name
        assert 1 == page.count("sha256-"), name


@pytest.mark.slow
@browser_test
def test_a_reader_steps_and_plays(browser: Browser, tmp_path: Path) -> None:
    """Keys step on, back and to the ends; Play moves; a reader who wants less motion sees steps; dark and light."""
    board, chart = tmp_path / "ring.html", tmp_path / "1f1b.html"
    board.write_text(document(explained("ring", 4)))
    chart.write_text(document(explained("zero-bubble", 4)))
    with open_page(browser, board) as (page, errors):
        assert "A0" == page.locator("#board text.label").first.text_content()
        page.keyboard.press("ArrowRight")
        until(page, "document.querySelectorAll('.cell.fresh').length", 4)
        assert "A0 = 10" in page.locator("#messages").inner_text()
        page.keyboard.press("End")
        until(page, "document.querySelectorAll('.cell.done').length", 16)
        page.keyboard.press("Home")
        page.keyboard.press("Space")
        until(page, "document.querySelectorAll('rect.chip').length", 4)
        page.keyboard.press("Space")
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.locator("#theme").click()
        assert light != page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert [] == errors
    with open_page(browser, chart) as (page, errors):
        page.emulate_media(reduced_motion="reduce")
        assert 3 * 4 * 8 == page.locator("#timeline .bar").count()
        page.keyboard.press("Space")
        until(page, "dptrace.player.position > 0 && dptrace.player.part", 0)
        emulate(page, color_scheme="dark")
        assert [] == errors
