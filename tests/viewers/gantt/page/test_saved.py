"""What the Gantt page saves: the view as PNG."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from dptrace.viewers.base import theme
from dptrace.viewers.gantt.page import document as gantt
from tests.support.browser import browser_test, open_page
from tests.support.gantt_page import settle
from tests.support.jobs import late_run
from tests.support.synthetic import training_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def saved(page: Page, press: str) -> tuple[str, bytes]:
    """Return name and content of the file that a key or, with the id of a button, a click saves."""
    with page.expect_download() as download:
        page.locator(press).click() if press.startswith("#") else page.keyboard.press(press)
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


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
