"""What the Gantt page saves and sends: the view as PNG, a link to it, and itself with bookmarks."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from dptrace.viewers.base import theme
from dptrace.viewers.gantt.page import document as gantt
from tests.support.browser import browser_test, open_page, rest, until
from tests.support.gantt_page import settle, show, written
from tests.support.jobs import late_run
from tests.support.synthetic import training_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def saved(page: Page, press: str) -> tuple[str, bytes]:
    """Return name and content of the file that a key or, with the id of a button, a click saves."""
    with page.expect_download() as download:
        page.locator(press).click() if press.startswith("#") else page.keyboard.press(press)
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


@pytest.mark.slow
@browser_test
def test_a_saved_view_has_all_rows(browser: Browser, tmp_path: Path) -> None:
    """Also those below the window, whose frame stays as it is; the button saves the same as the key."""
    path = tmp_path / "late.html"
    path.write_text(gantt.document(late_run(30, 70, 30, 30, 30)), encoding="utf-8")
    with open_page(browser, path, (1000, 420)) as (page, errors):
        settle(page)
        page.evaluate("dptrace.findings.show(0)")
        settle(page)
        name, content = saved(page, "e")
        height, frame = page.evaluate("[dptrace.stage.height, dptrace.stage.frame]")

        assert name.endswith(".png")
        assert height > frame
        assert Image.open(io.BytesIO(content)).height > 2 * height
        assert content == saved(page, "#save")[1]
        assert frame == page.evaluate("dptrace.stage.frame")
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_a_png_is_what_the_page_shows(browser: Browser, tmp_path: Path) -> None:
    """At twice its size: its pixels are those of the canvas, in the theme of the page, without what is around it."""
    path = tmp_path / "two.html"
    path.write_text(gantt.document(training_run(400, ranks=2)), encoding="utf-8")
    with open_page(browser, path, (1000, 900), scale=2) as (page, errors):
        page.emulate_media(color_scheme="dark")
        settle(page)
        name, content = saved(page, "#save")
        image = np.array(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
        left, width, row = page.evaluate(
            "[dptrace.scene.layout.left, dptrace.main.frame().width, dptrace.stage.boxOf(1, 'compute')]"
        )
        y = 2 * 24 + round(2 * row["y"]) + row["h"]
        line = image[y, 2 * left : 2 * (left + round(width))]
        shown = page.evaluate(
            """(y) => {
                const { canvas } = dptrace.main;
                return [...canvas.getContext("2d").getImageData(0, y, canvas.width, 1).data];
            }""",
            round(2 * row["y"]) + row["h"],
        )
        canvas = np.array(shown).reshape(-1, 4)
        opaque = canvas[: len(line), 3] == 255

        assert name.endswith(".png")
        assert [int(theme.CHROME["dark"]["paper"][i : i + 2], 16) for i in (1, 3, 5)] == image[0, 0].tolist()
        assert opaque.sum() > 500
        assert np.mean(np.abs(line[: len(opaque)][opaque] - canvas[: len(line)][opaque][:, :3]).max(axis=1) < 8) > 0.97
        assert [] == [error for error in errors if "willReadFrequently" not in error]


@pytest.mark.slow
@browser_test
@pytest.mark.parametrize("api", [True, False])
def test_a_link_to_the_view_is_copied(browser: Browser, tmp_path: Path, api: bool) -> None:
    """By key and by button, which says so; also where the browser has no clipboard API."""
    path = tmp_path / "late.html"
    path.write_text(gantt.document(late_run(30, 70)), encoding="utf-8")
    before = "" if api else "Object.defineProperty(navigator, 'clipboard', { value: undefined });"
    with open_page(browser, path, before=before) as (page, errors):
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        for press, wanted in (("l", "t="), ("#link", "find=gemm")):
            page.keyboard.press("w")
            page.keyboard.press(press) if len(press) == 1 else page.locator(press).click()
            until(page, "document.querySelector('#link').textContent", "Copied")
            until(page, "document.querySelector('#link').textContent", "Copy link")
            page.locator("#find").fill("gemm")
            page.locator("#find").press("Control+a")
            page.keyboard.press("Control+v")
            pasted = page.locator("#find").input_value()
            page.locator("#find").fill("gemm")
            rest(page, within_ms=1_000)
            assert pasted.startswith(f"{path.as_uri()}#")
            assert wanted in pasted
            page.locator("h1").click()
        assert [] == errors


@pytest.mark.slow
@browser_test
def test_a_saved_page_opens_with_its_bookmarks(browser: Browser, tmp_path: Path) -> None:
    """And at its view: a click leads to a bookmark's, notes stay text, a deleted one is gone from the next file."""
    path, sent = tmp_path / "late.html", [tmp_path / "first.html", tmp_path / "second.html"]
    path.write_text(gantt.document(late_run(30, 70)), encoding="utf-8")
    before = "window.fired = []; window.PWN = (how) => fired.push(how);"
    items, count = "#bookmarks li", "document.querySelectorAll('#bookmarks li').length"
    with open_page(browser, path, before=before) as (page, errors):
        page.locator("#findings button:enabled").first.click()
        until(page, "dptrace.interactions.card.setting !== ''", True)
        rest(page, within_ms=1_000)
        address, title = page.evaluate("location.hash"), page.locator("#card h2").inner_text()
        page.keyboard.press("b")
        page.keyboard.insert_text("</script><img src=x onerror=PWN(1)>\u202e")
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        page.locator("#card .close").click()
        page.keyboard.press("f")
        rest(page, within_ms=1_000)
        page.keyboard.press("b")
        page.keyboard.press("Enter")
        last = page.evaluate("location.hash")
        page.reload()
        until(page, count, 2)
        page.keyboard.press("b")
        sent[0].write_bytes(saved(page, "#bookmarks .save")[1])
        assert [] == [error for error in errors if "file:" not in error]
    for here, after, left in zip(sent, [sent[1], None], [2, 1], strict=True):
        with open_page(browser, here, before=before) as (page, errors):
            until(page, count, left)
            assert last == page.evaluate("location.hash")
            assert page.locator(items).first.inner_text().startswith("</script><img src=x onerror=PWN(1)>\\u{202e}")
            page.locator(f"{items} .link").first.click()
            until(page, "location.hash", address)
            assert title == page.locator("#card h2").inner_text()
            page.keyboard.press("Control+z")
            until(page, "location.hash", last)
            if after:
                page.locator(f"{items} .close").last.click()
                after.write_bytes(saved(page, "#bookmarks .save")[1])
            assert ([], []) == (page.evaluate("fired"), errors)


@pytest.mark.slow
@browser_test
def test_a_bookmark_says_where_it_is_like_the_figures(browser: Browser, tmp_path: Path) -> None:
    """Of a view of some µs in ns since its step began, as the axis counts there."""
    with open_page(browser, written(late_run(30, 70), tmp_path / "late.html")) as (page, errors):
        show(page, 40_012_000, 40_015_000)
        page.keyboard.press("b")
        page.keyboard.press("Enter")

        caption = page.locator("#bookmarks li .link").inner_text()
        assert "into the step" in caption
        assert page.locator("#summary .window span").first.inner_text() == caption
        assert [] == errors
