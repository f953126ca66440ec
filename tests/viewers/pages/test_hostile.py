"""Hostile names of a run are text on every page: in its HTML, and in a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bokeh.embed import file_html
from bokeh.resources import INLINE

import dptrace
from dptrace import Run
from dptrace.comparison.compare import compare
from dptrace.viewers.pages import comparison, report
from dptrace.viewers.pages.view import document
from dptrace.viewers.views.registry import VIEWS
from tests.support.browser import PATIENCE_S, browser_test, open_page, rest
from tests.support.view_cases import CASES, hostile_run
from tests.viewers.base.test_page import Scripts

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WATCH = "window.PWNED = []; window.PWN = (what) => window.PWNED.push(what);"
PAGES: dict[str, Callable[[Run], str]] = {
    "diff": lambda run: comparison.document(compare(run, run)),
    "report": report.document,
    "layout": lambda run: file_html(dptrace.figure(run), INLINE),
    "notebook": lambda run: f"<!DOCTYPE html><title>x</title>{run.show('gantt')._repr_html_()}",
    **{name: lambda run, view=view: document(view, run) for name, view in VIEWS.items() if view.draw is not None},  # type: ignore[misc]
}
OPENED = ("diff", "report", "notebook", "layout", "breakdown", "heatmap", "bandwidth", "buckets")


@pytest.mark.slow
def test_names_stay_data() -> None:
    """They add no tag, and what reverses text or controls a terminal is spelled out."""
    for name in PAGES:
        hostile, plain = (PAGES[name](run) for run in (hostile_run(), CASES["two ranks"]()))

        assert not {"img", "object", "link", "base"} & set(Scripts(hostile).tags), name
        assert len(Scripts(plain).scripts) == len(Scripts(hostile).scripts), name
        assert not set("\x1b\u202e") & set(hostile), name


@pytest.mark.slow
@browser_test
@pytest.mark.parametrize("name", [*OPENED, "still report"])
def test_nothing_fires_in_a_browser(
    browser: Browser, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Chromium, with the chart or its still picture, also in a notebook's frame; and the policy is not broken."""
    if name == "still report":
        monkeypatch.setattr(report, "MAX_REPORT_INTERVALS", 1)
    path = tmp_path / "page.html"
    path.write_text(PAGES[name.removeprefix("still ")](hostile_run()), encoding="utf-8")
    with open_page(browser, path, before=WATCH, ready=name in ("report", "diff")) as (page, errors):
        if name == "notebook":
            ready = page.frame_locator("iframe").locator("html[data-ready='1']")
            ready.wait_for(state="attached", timeout=1000 * PATIENCE_S)
        rest(page)

        assert [] == [found.evaluate("window.PWNED") for found in page.frames if found.evaluate("window.PWNED")]
        assert [] == [e for e in errors if "setting log level" not in e and not e.startswith(("about:", "data:"))]
        assert 0 == page.locator("img").count()
