"""Take a screenshot of a page with an installed Chromium."""

from __future__ import annotations

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

__all__ = ["find_chromium", "framed", "screenshot"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
_MAC = "/Applications/{0}.app/Contents/MacOS/{0}"
_ELSEWHERE = {
    "darwin": (_MAC.format("Google Chrome"), _MAC.format("Chromium")),
    "win32": (r"C:\Program Files\Google\Chrome\Application\chrome.exe",),
}
"""Where browsers are installed outside the search path."""
_PATIENCE = 120
_MISSING = (
    "--png needs Chromium or Chrome, which was not found. Install one (Debian: apt-get install chromium), name it "
    "in the variable CHROMIUM, or write an SVG, which needs none: --svg FILE."
)


def find_chromium() -> str | None:
    """Return the path of a Chromium: the environment variable CHROMIUM, else the first that is found."""
    if named := os.environ.get("CHROMIUM"):
        return shutil.which(named)
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    return found or next((path for path in _ELSEWHERE.get(sys.platform, ()) if Path(path).exists()), None)


_CONTROLS = "<style>.tools,.tip,dialog,#names .all,#rows-scroll{display:none!important}</style>"
"""Hides controls, as on paper."""


def framed(drawing: str) -> str:
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
    chromium = find_chromium()
    if chromium is None:
        raise DptraceError(_MISSING)
    # A killed Chromium may leave a file behind while the folder is removed.
    with tempfile.TemporaryDirectory(prefix="dptrace-", ignore_cleanup_errors=True) as folder:
        file, written = Path(folder, "page.html"), Path(folder, "page.png")
        file.write_text(page.replace("</head>", f"{_CONTROLS}</head>", 1), encoding="utf-8")
        command = [
            chromium,
            *("--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-background-networking"),
            # Chromium does not run as root with its sandbox; the page is our own, and its policy lets nothing else run.
            *(["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
            f"--user-data-dir={Path(folder, 'profile')}",
            f"--window-size={size[0]},{size[1]}",
            "--virtual-time-budget=8000",
            f"--screenshot={written}",
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
