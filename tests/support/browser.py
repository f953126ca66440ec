"""Open pages in headless Chromium as a user does, and collect all errors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["CHROMIUM", "browser_test", "chromium", "open_page"]

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def browser_test(function: Any) -> Any:
    """Mark a test that opens a page; it is skipped without Chromium."""
    skip = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
    return pytest.mark.browser(skip(function))


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(
    browser: Browser,
    path: Path | str,
    size: tuple[int, int] = (1440, 900),
    before: str = "",
    ready: bool = True,
    scale: float = 1,
) -> Iterator[tuple[Page, list[str]]]:
    """Open a file or an address; yields the page and its list of errors: script, console, policy, network.

    Args:
        before: a script to run before the page's own.
        ready: wait until the page is drawn.
        scale: device pixels per CSS pixel.
    """
    url = path if isinstance(path, str) else path.as_uri()
    allowed = ("file:", url) if isinstance(path, str) else ("file:",)
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, device_scale_factor=scale)
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(f"exception: {error}"))
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("request", lambda request: errors.append(request.url) if not request.url.startswith(allowed) else None)
    page.add_init_script(
        "addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective));" + before
    )
    try:
        page.goto(url)
        if ready:
            page.locator("html[data-ready='1']").wait_for(state="attached", timeout=20_000)
        yield page, errors
    finally:
        context.close()
