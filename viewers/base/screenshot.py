"""Draw a page as PNG or PDF with an installed Chromium."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from dptrace.core.termination import signals_held
from dptrace.errors import DptraceError

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
_MAC = "/Applications/{0}.app/Contents/MacOS/{0}"
_ELSEWHERE = {
    "darwin": (_MAC.format("Google Chrome"), _MAC.format("Chromium")),
    "win32": (r"C:\Program Files\Google\Chrome\Application\chrome.exe",),
}
"""Where browsers are installed outside the search path."""
_PATIENCE = 120
_MISSING = (
    "A {} needs Chromium or Chrome, which was not found. Install one (Debian: apt-get install chromium), name it "
    "in the variable CHROMIUM, or write an SVG, which needs none: --svg FILE or --figure FILE.svg."
)


def find_chromium() -> str | None:
    """Return the path of a Chromium: the environment variable CHROMIUM, else the first that is found."""
    if named := os.environ.get("CHROMIUM"):
        return shutil.which(named)
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    return found or next((path for path in _ELSEWHERE.get(sys.platform, ()) if Path(path).exists()), None)


_CONTROLS = "<style>.tools,.tip,dialog,#names .all,#rows-scroll{display:none!important}</style>"
"""Hides controls, as on paper."""


def svg_page(drawing: str) -> str:
    """Put an SVG on a page, as wide as the page and no higher."""
    style = "body{margin:0;background:#fff}svg{display:block;width:100%;height:auto;max-height:100vh}"
    return f'<!DOCTYPE html><meta charset="utf-8"><style>{style}</style>\n{drawing}'


def screenshot(page: str, path: Path, size: tuple[int, int]) -> None:
    """Write a screenshot of a page as PNG.

    Args:
        page: the page's text; it is shown from a file, without network.

    Raises:
        DptraceError: there is no Chromium, or it wrote nothing.
    """
    page = page.replace("</head>", f"{_CONTROLS}</head>", 1)
    _draw(page, path, "png", ["--hide-scrollbars", f"--window-size={size[0]},{size[1]}"], "--screenshot=")


def write_pdf(drawing: str, path: Path, size: tuple[float, float]) -> None:
    """Write an SVG of this size in pixels as PDF of one page without margins; its text stays text.

    Raises:
        DptraceError: there is no Chromium, or it wrote nothing.
    """
    # A page that is a little larger, since a drawing that fills it to the last pixel may get a second, empty one.
    width, height = math.ceil(size[0]) + 1, math.ceil(size[1]) + 1
    style = f"@page{{size:{width}px {height}px;margin:0}}body{{margin:0}}svg{{display:block}}"
    page = f'<!DOCTYPE html><meta charset="utf-8"><style>{style}</style>\n{drawing}'
    _draw(page, path, "pdf", ["--no-pdf-header-footer"], "--print-to-pdf=")


def _draw(page: str, path: Path, kind: str, options: list[str], output: str) -> None:
    """Let Chromium draw a page into a file."""
    chromium = find_chromium()
    if chromium is None:
        raise DptraceError(_MISSING.format(kind.upper()))
    # A killed Chromium may leave a file behind while the folder is removed.
    with tempfile.TemporaryDirectory(prefix="dptrace-", ignore_cleanup_errors=True) as folder:
        file, written = Path(folder, "page.html"), Path(folder, f"drawn.{kind}")
        file.write_text(page, encoding="utf-8")
        command = [
            chromium,
            *("--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
            # Chromium does not run as root with its sandbox; the page is our own, and its policy lets nothing else run.
            *(["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
            f"--user-data-dir={Path(folder, 'profile')}",
            "--virtual-time-budget=8000",
            *options,
            f"{output}{written}",
            file.as_uri(),
        ]
        try:
            said = _run(command, folder)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DptraceError(f"{chromium} could not draw the page: {error}. Write an SVG: --svg FILE.") from None
        if not written.exists():
            last = (said.strip().splitlines() or ["it said nothing"])[-1]
            raise DptraceError(f"{chromium} drew nothing: {last}. Write an SVG, which needs no browser: --svg FILE.")
        shutil.copyfile(written, path)


def _run(command: list[str], folder: str) -> str:
    """Run Chromium with its temporary files in a folder, and return what it says; end all of its processes with it."""
    process = None
    try:
        with signals_held():  # one could lose a process that has just been started
            process = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                env={**os.environ, "TMPDIR": folder},
            )
        return process.communicate(timeout=_PATIENCE)[1]
    except BaseException:
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
            process.communicate()
        raise
