"""A served page in the browser: it shows what the same page in one file shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dptrace.run.run import Run
from dptrace.viewers.gantt.chart import Role, chart
from dptrace.viewers.gantt.host import HostAnswers
from dptrace.viewers.gantt.page import document as gantt
from dptrace.viewers.gantt.page.server import PageServer
from dptrace.viewers.gantt.tiles.service import TileService
from tests.support.browser import browser_test, open_page, until
from tests.support.gantt_page import at, expected_figures, settle, show, shown_figures, spot, tip
from tests.support.synthetic import training_run
from tests.viewers.gantt.page.test_truth import check, only_raster

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@contextmanager
def served(run: Run) -> Iterator[str]:
    """Serve a run; yields the address."""
    drawn = gantt.served(run, host=True)
    answers = {"host": HostAnswers(run)}
    server = PageServer(drawn.page, drawn.files, TileService(drawn.store), answers=answers)
    try:
        yield server.url
    finally:
        server.close()


@pytest.fixture(scope="module")
def run() -> Run:
    return training_run(40_000, ranks=3)


@pytest.fixture(scope="module")
def address(run: Run) -> Iterator[str]:
    with served(run) as url:
        yield url


@pytest.fixture(scope="module")
def file(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "page.html"
    path.write_text(gantt.document(run), encoding="utf-8")
    return path


@pytest.mark.slow
@browser_test
def test_columns_are_shares_at_every_zoom(browser: Browser, address: str, run: Run) -> None:
    """Within a pixel of the row's height and the rounding of shares to a byte; figures are the split's."""
    drawn = chart(run)
    with open_page(browser, address) as (page, errors):
        settle(page)
        assert expected_figures(run) == shown_figures(page)
        only_raster(page)
        for low, high, least in ((0, 1, 0.7), (0.3, 0.8, 0.7), (0.5, 0.52, 0.1)):
            show(page, low * drawn.end_ns, high * drawn.end_ns)
            for role in (Role.PHASES, Role.COMPUTE, Role.EXPOSURE):
                assert check(page, drawn, role, 2, most=1.25) > least
        assert [] == [error for error in errors if "willReadFrequently" not in error]


def seen(page: Page, end: int) -> list[object]:
    """Use the page, and return what it tells: hovers, a search, a clicked collective, a measured range, streams."""
    settle(page)
    shown: list[object] = []
    for low, high in ((0, 1.0), (0.55, 0.56)):
        show(page, low * end, high * end)
        for role, share in (("phases", 0.3), ("compute", 0.35), ("exposure", 0.7), ("compute", 0.61)):
            page.mouse.move(*at(page, role, (low + share * (high - low)) * end, 1))
            shown.append(tip(page))
        shown.append(page.locator("#view").inner_text())
    x, y, _ = spot(page, "exposure", 1)
    page.mouse.click(x, y)
    page.locator("#card").wait_for()
    settle(page)
    shown.append(page.locator("#card").inner_text())
    page.keyboard.press("Escape")
    page.keyboard.press("r")
    page.mouse.move(5, 5)
    page.locator(".row", has_text="stream").first.wait_for()
    settle(page)
    shown.append(
        page.evaluate("dptrace.rows.filter(({ role }) => role === 'stream').map(({ label, h }) => [label, h])")
    )
    page.fill("#find", "gemm")
    until(page, "document.querySelector('#found').textContent.includes('found')", True)
    settle(page)
    shown.append(page.locator("#card").inner_text())
    for _ in range(2):
        page.press("#find", "Enter")
        settle(page)
        shown.append(page.locator("#found").inner_text())
    page.press("#find", "Shift+Enter")
    settle(page)
    return [*shown, page.locator("#found").inner_text(), page.evaluate("dptrace.interactions.searchBar.current.start")]


@pytest.mark.slow
@browser_test
def test_a_served_page_shows_the_same(browser: Browser, address: str, file: Path, run: Run) -> None:
    """By every way to ask."""
    end = chart(run).end_ns
    with open_page(browser, file) as (page, errors):
        expected = seen(page, end)
        assert [] == errors
    with open_page(browser, address) as (page, errors):
        assert expected == seen(page, end)
        assert [] == errors


PRINTED = """window.sheets = [];
print = () => {
    dispatchEvent(new Event("beforeprint"));
    sheets.push(document.querySelector("#sheets p").textContent, dptrace.lod.exact.columns.size);
    dispatchEvent(new Event("afterprint"));
};"""
SAVED = """(() => {
    const { prototype } = HTMLCanvasElement, { toBlob } = prototype;
    prototype.toBlob = function (...given) {
        sheets.push(dptrace.lod.exact.columns.size);
        toBlob.apply(this, given);
    };
})()"""


@pytest.mark.slow
@browser_test
def test_what_is_off_the_screen_is_fetched_before_it_is_saved_or_printed(browser: Browser) -> None:
    """All rows then; printed by the browser's menu, paper says what it lacks."""
    run = training_run(4_000, ranks=20, steps=2)
    with served(run) as url, open_page(browser, url, (1000, 500), before=PRINTED) as (page, errors):
        settle(page)
        page.evaluate("dptrace.stage.collapseAll(false)")
        settle(page)
        on_screen = page.evaluate("dptrace.lod.exact.columns.size")
        page.evaluate("print()")
        page.keyboard.press("Control+p")
        until(page, "sheets.length", 4)
        rough, few, told, many = page.evaluate("sheets")
        page.evaluate(SAVED)
        with page.expect_download():
            page.keyboard.press("e")
        settle(page)

        assert "Ctrl+P" in rough
        assert "Ctrl+P" not in told
        assert many == 20 * 4 > few == on_screen
        assert many == page.evaluate("sheets[4]")
        assert page.evaluate("dptrace.exact()")
        assert [] == [error for error in errors if "willReadFrequently" not in error]
