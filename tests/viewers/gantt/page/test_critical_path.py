"""The Gantt page of a step with its critical path, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dptrace
from dptrace.viewers.gantt.page import document as gantt
from dptrace.viewers.gantt.page.critical_path import step_document
from tests.support.browser import browser_test, chromium, open_page
from tests.support.gantt_page import at, settle, tip
from tests.support.replay_files import write_job

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dptrace.Run:
    return dptrace.open(write_job(tmp_path_factory.mktemp("path_page_job")), cache=False)


def picture(page: Page) -> str:
    drawn: str = page.evaluate("dptrace.main.canvas.toDataURL()")
    return drawn


def click(page: Page, role: str, time: float, track: int) -> str:
    """Click on a time in a row of a GPU; return what the panel of the kernel there then says of it."""
    page.mouse.click(*at(page, role, time, track))
    page.locator("#card", has_text=f"rank {track}").filter(has=page.locator("h2", has_text="forward")).wait_for()
    settle(page)
    return page.locator("#card").inner_text()


@browser_test
def test_the_path_is_drawn_and_the_rest_dimmed(browser: Browser, run: dptrace.Run, tmp_path: Path) -> None:
    """Rows on both GPUs that it passes, K for the rest, a panel for a piece, and slack for a kernel beside it."""
    path = run.critical_path("ProfilerStep#1")
    (tmp_path / "page.html").write_text(step_document(run, path), encoding="utf-8")
    with open_page(browser, tmp_path / "page.html") as (page, errors):
        settle(page)
        first = picture(page)
        page.keyboard.press("k")
        settle(page)
        dimmed = picture(page)
        page.get_by_role("button", name="Critical path").click()
        settle(page)
        lit = picture(page)
        page.mouse.move(*at(page, "path", 200_000, 1))
        settle(page)
        hovered = tip(page)
        piece = click(page, "path", 200_000, 1)
        page.keyboard.press("Shift+K")
        settle(page)
        opened = page.locator("#card").inner_text()
        page.keyboard.press("Enter")
        settle(page)
        followed = page.locator("#card").inner_text()
        on_it, beside_it = click(page, "compute", 200_000, 1), click(page, "compute", 200_000, 0)

        assert [0, 1] == page.evaluate("dptrace.rows.filter(({ role }) => role === 'path').map(({ track }) => track)")
        assert first == lit != dimmed
        assert "forward" in hovered
        assert "400 µs, 50 % of step 1" in hovered
        assert all(text in piece for text in ("rank 1 · GPU 0", "400 µs", "40.0 µs shorter"))
        assert "piece\t1 of" in opened
        assert "piece\t2 of" in followed
        assert "critical path" in on_it
        assert "100 µs" in beside_it.partition("slack")[2]
        assert page.locator("#keys dt", has_text="K").count()
        assert not errors


@browser_test
def test_a_page_without_a_path_has_neither_button_nor_row(browser: Browser, run: dptrace.Run, tmp_path: Path) -> None:
    """Nor does the key do anything."""
    (tmp_path / "page.html").write_text(gantt.document(run), encoding="utf-8")
    with open_page(browser, tmp_path / "page.html") as (page, errors):
        settle(page)
        before = picture(page)
        page.keyboard.press("k")
        settle(page)

        assert before == picture(page)
        assert page.locator("#path").is_hidden()
        assert not page.evaluate("dptrace.rows.some(({ path }) => path)")
        assert not errors
