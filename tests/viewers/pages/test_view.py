"""A view as a page."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dptrace
from dptrace.errors import UsageError
from dptrace.viewers.pages.view import document
from dptrace.viewers.views.names import ViewName
from dptrace.viewers.views.registry import VIEWS
from tests.support.browser import PATIENCE_S, browser_test, emulate, open_page, until
from tests.support.paths import TRACES
from tests.support.synthetic import training_run
from tests.support.view_cases import CASES

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@browser_test
def test_views_in_the_browser(browser: Browser, tmp_path: Path) -> None:
    """Each mark has its tooltip, also under a text; a dark system has a dark page and picture, paper a light one."""
    path = tmp_path / "breakdown.html"
    path.write_text(document(VIEWS["breakdown"], CASES["two ranks"]()), encoding="utf-8")
    with open_page(browser, path, ready=False) as (page, errors):
        tips = page.evaluate(_TIPS)
        assert any(tip.startswith("rank 0, step 0: Forward") for tip in tips)
        light = page.evaluate(_FILLS)
        emulate(page, color_scheme="dark")
        dark = page.evaluate(_FILLS)
        assert "rgb(18, 22, 28)" == page.evaluate("getComputedStyle(document.body).backgroundColor") == dark[0]
        assert all(one != other or one == "rgb(0, 0, 0)" for one, other in zip(light, dark, strict=True))
        emulate(page, media="print", color_scheme="dark")
        assert light == page.evaluate(_FILLS)
        assert "rgb(255, 255, 255)" == page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert [] == errors


_FILLS = """() => [...document.querySelectorAll('.picture svg > rect, .picture svg > text')]
    .filter((shape) => !shape.getAttribute('fill').startsWith('url')).map((shape) => getComputedStyle(shape).fill)"""
_TIPS = """() => [...document.querySelectorAll('.picture svg > rect:has(title)')].map((box) => {
    const { x, y, width, height } = box.getBoundingClientRect();
    return document.elementFromPoint(x + width / 2, y + height / 2)?.querySelector('title')?.textContent ?? '';
})"""


# A run in a notebook.


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["gantt", "breakdown"])
def test_a_notebook_shows_the_same_page(name: ViewName, tmp_path: Path) -> None:
    """In a frame that may run scripts and reach nothing of the notebook; and writes it where asked."""
    run = CASES["two ranks"]()
    shown = run.show(name)
    html = shown._repr_html_()
    frame = re.fullmatch(r'<iframe sandbox="allow-scripts allow-downloads" srcdoc="([^"]*)"[^<>]*></iframe>', html)

    assert frame
    assert unescape(frame[1]) == shown.page
    # Bokeh counts its models up from page to page.
    assert re.sub(r"p\d+", "", document(VIEWS[name], run, embedded=True)) == re.sub(r"p\d+", "", shown.page)
    assert f"{name} of runs/two" in repr(shown)
    shown.save(tmp_path / "x.html")
    assert shown.page == (tmp_path / "x.html").read_text(encoding="utf-8")


def test_a_view_that_is_not_there_is_refused() -> None:
    """The message lists the existing views."""
    with pytest.raises(UsageError, match="gantt, summary"):
        CASES["two ranks"]().show("pie")  # type: ignore[arg-type]


@pytest.mark.heavy
def test_a_critical_path_is_shown_on_the_gantt_chart_alone() -> None:
    """Another view refuses it."""
    run = dptrace.open(TRACES / "naive_cpu_2ranks")
    path = run.critical_path()

    assert f'"path":{{"step":"{path.step}"' in dptrace.show(run, critical_path=path).page
    with pytest.raises(UsageError, match="idle"):
        dptrace.show(run, "idle", critical_path=path)


@pytest.mark.slow
@browser_test
@pytest.mark.parametrize("name", ["gantt", "breakdown"])
def test_a_view_fits_its_frame_and_leaves_the_wheel_to_the_notebook(
    browser: Browser, name: ViewName, tmp_path: Path
) -> None:
    """Nothing in the frame scrolls or zooms where the notebook should scroll; with Ctrl, the chart zooms."""
    path, frame = tmp_path / "notebook.html", training_run(2_000, ranks=4).show(name)._repr_html_()
    path.write_text(
        f'<!DOCTYPE html><title>x</title><p style="height: 300px"></p>{frame}<p style="height: 3000px">', "utf-8"
    )
    with open_page(browser, path, (1000, 900), ready=False) as (page, _):
        if name == "gantt":
            page.frame_locator("iframe").locator("html[data-ready='1']").wait_for(timeout=1000 * PATIENCE_S)
        inner = page.frames[1]
        size = (
            "[document.documentElement.scrollWidth - innerWidth, document.documentElement.scrollHeight - innerHeight]"
        )
        until(inner, size, [0, 0])  # type: ignore[arg-type]
        shown = "globalThis.dptrace ? dptrace.main.range.to - dptrace.main.range.from : 0"
        before = inner.evaluate(shown)
        page.mouse.move(500, 750)
        page.mouse.wheel(0, 200)
        until(page, "scrollY", 200)
        assert before == inner.evaluate(shown)
        if name == "gantt":
            page.keyboard.down("Control")
            page.mouse.wheel(0, -200)
            until(inner, f"({shown}) < {before}", True)  # type: ignore[arg-type]
