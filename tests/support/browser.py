"""Open pages in headless Chromium as a user does, and collect all errors."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_S = 60.0
"""Seconds to wait for a page before a test fails: long, because the machine may be busy."""

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


_WATCHED = """(() => {
  // The page's pending timers and animation frames, with their delays in milliseconds; a timer can be run at once.
  const waiting = (window.testsWaiting = new Map());
  const watch = (start, cancel) => {
    const started = window[start].bind(window), cancelled = window[cancel].bind(window);
    window[start] = (act, delay, ...rest) => {
      const key = () => `${start} ${id}`;
      const run = (...given) => {
        waiting.delete(key());
        act(...given);
      };
      const id = started(run, delay, ...rest);
      const now = () => (cancelled(id), run(...rest));
      waiting.set(key(), start === "setTimeout" ? { delay: Number(delay) || 0, now } : { delay: 0 });
      return id;
    };
    window[cancel] = (id) => {
      waiting.delete(`${start} ${id}`);
      cancelled(id);
    };
  };
  watch("setTimeout", "clearTimeout");
  watch("requestAnimationFrame", "cancelAnimationFrame");
})();"""

_RESTS = """async (within) => {
  // The browser delivers input in a frame; the task after it runs when the page has handled that.
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const soon = [...window.testsWaiting].filter(([, { delay }]) => delay <= within);
  // What waits for input to rest need not wait: no more comes. A timer may have ended an earlier one.
  soon.sort(([, a], [, b]) => a.delay - b.delay);
  for (const [key, { now }] of soon) if (window.testsWaiting.has(key)) now?.();
  return !soon.length && (window.dptrace?.exact?.() ?? true);
}"""


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
    listens = "addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective));"
    page.add_init_script(_WATCHED + listens + before)
    try:
        page.goto(url)
        if ready:
            page.locator("html[data-ready='1']").wait_for(state="attached", timeout=1000 * PATIENCE_S)
        yield page, errors
    finally:
        context.close()


def until(page: Page, expression: str, expected: object, argument: object = None) -> None:
    """Wait until an expression, or a function of an argument, has the expected value on the page.

    Raises:
        AssertionError: it has another value after PATIENCE_S.
    """
    # Not wait_for_function, which uses eval; the page's security policy forbids that.
    end = time.monotonic() + PATIENCE_S
    while (found := page.evaluate(expression, argument)) != expected:
        assert time.monotonic() < end, f"{expression} is {found!r}, not {expected!r}"
        page.wait_for_timeout(10)


def emulate(
    page: Page, *, media: Literal["print", "screen"] | None = None, color_scheme: Literal["dark", "light"] | None = None
) -> None:
    """Set the medium or the system's color scheme, and wait until the page has it."""
    page.emulate_media(media=media, color_scheme=color_scheme)
    queries: list[str] = [media] if media else []
    queries += [f"(prefers-color-scheme: {color_scheme})"] if color_scheme else []
    for query in queries:
        until(page, "(query) => matchMedia(query).matches", True, query)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


def rest(page: Page, within_ms: int = 300) -> None:
    """Wait until the page has handled all input, and run its timers with a delay of this many milliseconds or less.

    The canvases of a Gantt page then lie over their frames and show the frames' range.
    """
    until(page, _RESTS, True, within_ms)
