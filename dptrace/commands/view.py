"""``dptrace view``: the per-GPU Gantt, as a page or in the terminal."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

import click

from dptrace.address import is_url, last_part, shown
from dptrace.commands.common import (
    OutputFile,
    advise,
    again,
    check_output,
    console,
    loudness_options,
    open_with_progress,
    progress,
    reading_options,
    replacing,
    run_argument,
)
from dptrace.errors import DptraceError, UsageError
from dptrace.reading import Reading


@click.command()
@run_argument
@click.option("-o", "--output", type=OutputFile(), help="Write the page to this file.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@click.option("--no-browser", is_flag=True, help="Write the page, and do not open it.")
@click.option("--text", is_flag=True, help="Draw in the terminal instead; good over SSH.")
@click.option("--ranks", metavar="LIST", help="Only these ranks: 0,1 or 0-3.")
@click.option("--steps", metavar="FIRST:LAST", help="Only these steps, by their numbers in the trace: 4:6 or 4.")
@reading_options
@loudness_options
def command(
    paths: tuple[str, ...],
    output: Path | None,
    force: bool,
    no_browser: bool,
    text: bool,
    ranks: str | None,
    steps: str | None,
    reading: Reading,
    loudness: str,
) -> None:
    """Draw RUN as a Gantt chart: for each GPU its phases, compute, communication and memory over time.

    RUN is a run folder, a trace file, several files (one for each rank), a folder or a glob of traces. The page is
    one file that needs no network. Without -o it is written to the cache folder and opened in the browser.

    \b
    Examples:
      dptrace view runs/interleaved
      dptrace view runs/ddp -o ddp.html
      dptrace view runs/ddp --ranks 0,1 --steps 4:6
      dptrace view runs/ddp --text | less -R
    """
    if text and output is not None:
        raise UsageError("--text draws in the terminal; leave -o out, or redirect: --text > gantt.txt.")
    if output is not None:
        check_output(output, force)
    from dptrace.select import select

    wanted = parse_ranks(ranks) if ranks is not None else None, parse_steps(steps) if steps is not None else None
    run = select(open_with_progress(paths, reading, loudness), *wanted)
    if text:
        from dptrace.viewers.terminal import print_gantt

        print_gantt(run, console())
        return
    from dptrace.viewers.gantt import document

    with progress("Drawing", loudness, measured=False):
        page = document(run)
    place = output or _cached(paths)
    with replacing(place) as beside:
        beside.write_text(page, encoding="utf-8")
    advise(f"Wrote {place} ({len(page) / 1e6:.1f} MB).", loudness)
    if output is None and not no_browser:
        _show(place, paths)


def parse_ranks(text: str) -> frozenset[int]:
    """Read ``0,2`` or ``0-3,8``.

    Raises:
        UsageError: it is neither.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"--ranks {text}: give numbers and ranges, for example 0,1 or 0-3.")
        first, last = int(match[1]), int(match[2] or match[1])
        ranks |= set(range(first, last + 1))
    return frozenset(ranks)


def parse_steps(text: str) -> tuple[int, int]:
    """Read ``4`` or ``4:6``: the first and the last step, both shown, by their numbers in the trace.

    Raises:
        UsageError: it is neither.
    """
    match = re.fullmatch(r"\s*(\d{1,12})(?::(\d{1,12}))?\s*", text)
    if not match or int(match[2] or match[1]) < int(match[1]):
        raise UsageError(f"--steps {text}: give the first and the last number, for example 4:6, or one, 4.")
    return int(match[1]), int(match[2] or match[1])


def _cached(paths: tuple[str, ...]) -> Path:
    """Name the page's place in the user's cache: one for each run, so that looking twice leaves one file."""
    if sys.platform == "darwin":
        usual = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        usual = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = usual / "dptrace" / "pages"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DptraceError(f"{folder}: can't be made: {error.strerror}. Name a place: -o page.html.") from None
    whole = "\0".join(path if is_url(path) else str(Path(path).absolute()) for path in paths)
    name = last_part(shown(paths[0])) if is_url(paths[0]) else Path(paths[0]).absolute().name
    stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)[:60]
    return folder / f"{stem}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}.html"


def _show(page: Path, paths: tuple[str, ...]) -> None:
    """Open the page, or say how to look at it where no browser can be opened."""
    import webbrowser

    # Without a display, webbrowser would find a text browser, which takes the terminal and runs no scripts.
    needs_display = sys.platform not in ("darwin", "win32") or "SSH_CONNECTION" in os.environ
    seen = not needs_display or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if seen and webbrowser.open(page.as_uri()):
        return
    click.echo(
        "No browser could be opened here. Copy the file to a machine that has one (scp), "
        f"or draw in the terminal: dptrace view {again(paths)} --text",
        err=True,
    )
