"""What several verbs share: reading a run with progress, and writing a file without half-writing or overwriting it."""

from __future__ import annotations

import functools
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from dptrace.core.text import sanitize
from dptrace.load.options import ReadOptions
from dptrace.readers.sources.url import redact

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.run.run import Run

__all__ = [
    "NORMAL",
    "QUIET",
    "VERBOSE",
    "console",
    "open_with_progress",
    "print_hint",
    "print_notes",
    "progress",
    "quoted_paths",
    "reading_options",
    "run_argument",
    "verbosity_options",
]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

QUIET, NORMAL, VERBOSE = "quiet", "normal", "loud"

_PROGRESS_DELAY_S = 1.0
"""Seconds after which a silent command begins to show its progress."""


def run_argument(function: Decorated) -> Decorated:
    """Add the argument RUN…: a run folder, a trace, several, a folder, a glob, an archive or URLs of traces."""
    return click.argument("paths", metavar="RUN...", nargs=-1, required=True, type=click.Path())(function)


def reading_options(function: Decorated) -> Decorated:
    """Add the options on how a run is read, as one argument *reading*."""

    @functools.wraps(function)
    def with_reading(
        *args: Any, comm_patterns: tuple[str, ...], strict: bool, cache: bool, jobs: int | None, **rest: Any
    ) -> Any:
        return function(*args, read_options=ReadOptions(comm_patterns, strict, cache, jobs), **rest)

    options = (
        click.option(
            "--comm-pattern",
            "comm_patterns",
            multiple=True,
            metavar="REGEX",
            help="Kernels whose name matches communicate, beside those known to. May be given several times.",
        ),
        click.option("--strict", is_flag=True, help="Refuse files that are cut off or damaged, instead of telling so."),
        click.option("--no-cache", "cache", flag_value=False, default=True, help="Read every file anew; keep nothing."),
        click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Read with N processes [as many as pay]."),
    )
    for option in reversed(options):
        with_reading = option(with_reading)
    return cast(Decorated, with_reading)


def console(stderr: bool = False) -> Console:
    """Give a console; piped, it is wide enough that no table is folded."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream is None or stream.isatty() or "COLUMNS" in os.environ else 132
    return Console(file=stream, width=wide, highlight=False)


def verbosity_options(function: Decorated) -> Decorated:
    """Add -q and -v, as the argument *loudness*."""
    function = click.option("-v", "--verbose", "loudness", flag_value=VERBOSE, help="Tell each file once it is read.")(
        function
    )
    return click.option(
        "-q",
        "--quiet",
        "loudness",
        flag_value=QUIET,
        default=NORMAL,
        help="Nothing but the answer: no progress, no advice.",
    )(function)


def print_hint(text: str, verbosity: str) -> None:
    """Say what was done or what to do next, on stderr, so that stdout holds the answer alone."""
    if verbosity != QUIET:
        click.echo(sanitize(text), err=True)


def quoted_paths(paths: Sequence[str]) -> str:
    """Give RUN as it is typed for the next command, without secrets; a word for it where it can't be read twice."""
    twice = all(path != "-" and not path.startswith(("/dev/fd/", "/proc/self/fd/")) for path in paths)
    return shlex.join(map(redact, paths)) if twice else "RUN"


def print_notes(run: Run) -> None:
    """Say on stderr what the user must know to believe the figures; --quiet does not hide it."""
    for note in run.notes:
        click.echo(f"! {sanitize(note)}", err=True)


def open_with_progress(paths: Sequence[str], read_options: ReadOptions, verbosity: str = NORMAL) -> Run:
    """Read a run, showing the progress on a terminal once it takes over a second."""
    # Before NumPy is imported: its linear algebra, which reading does not need, starts a thread for each core, and
    # these spin for a tenth of a second. A library may not decide that for its caller; a command may.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from dptrace.load.open import open_run

    with progress("Reading", verbosity) as show:

        def file_done(done: int, total: int, name: str) -> None:
            show(done / total, name)
            if verbosity == VERBOSE and done:
                click.echo(sanitize(f"Read {name} ({done} of {total})"), err=True)

        return open_run(paths, read_options, file_done)


@contextmanager
def progress(verb: str, verbosity: str = NORMAL, measured: bool = True) -> Iterator[Callable[[float, str], None]]:
    """Give a function to call with the fraction done and what is under way; silent where stderr is no terminal.

    Args:
        measured: whether the fraction is known, and so worth a bar.
    """
    if verbosity != NORMAL or not sys.stderr.isatty():
        yield lambda done, what: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    what = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), TextColumn(verb), *([BarColumn()] if measured else []), TimeElapsedColumn(), what)
    bar = Progress(*columns, console=console(stderr=True), transient=True)
    task = bar.add_task("", total=1.0)
    # A clock of its own, since one large file gives no occasion to look at the time.
    timer = threading.Timer(_PROGRESS_DELAY_S, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, what: bar.update(task, completed=done, description=what)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
