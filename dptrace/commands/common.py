"""What several verbs share: reading a run with progress, and writing a file without half-writing or overwriting it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dptrace.errors import DptraceError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.run import Run

__all__ = ["check_output", "comm_pattern_option", "console", "open_with_progress", "replacing", "run_argument"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_PATIENCE = 1.0
"""Seconds after which a silent command begins to show its progress."""


def run_argument(function: Decorated) -> Decorated:
    """Add the argument RUN…: a run folder, a trace, several, a folder or a glob of traces."""
    return click.argument("paths", metavar="RUN...", nargs=-1, required=True, type=click.Path())(function)


def comm_pattern_option(function: Decorated) -> Decorated:
    """Add --comm-pattern."""
    return click.option(
        "--comm-pattern",
        "comm_patterns",
        multiple=True,
        metavar="REGEX",
        help="Kernels whose name matches communicate, beside those known to. May be given several times.",
    )(function)


def console(stderr: bool = False) -> Console:
    """Give a console; piped, it is wide enough that no table is folded."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream.isatty() or "COLUMNS" in os.environ else 132
    return Console(file=stream, width=wide, highlight=False)


def open_with_progress(paths: Sequence[str], comm_patterns: Sequence[str] = ()) -> Run:
    """Read a run; on a terminal, show the progress once it takes over a second."""
    from dptrace.run import open_run

    if not sys.stderr.isatty():
        return open_run(paths, comm_patterns)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("Reading"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    bar = Progress(*columns, console=console(stderr=True), transient=True)
    begun = time.monotonic()
    task = bar.add_task("")

    def show(done: int, total: int, name: str) -> None:
        if not bar.live.is_started and (time.monotonic() - begun > _PATIENCE or total == 1):
            bar.start()
        bar.update(task, completed=done, total=total, description=name)

    try:
        return open_run(paths, comm_patterns, show)
    finally:
        bar.stop()


def check_output(path: Path, force: bool) -> None:
    """Refuse before any work what would fail or destroy after it.

    Raises:
        UsageError: the file is there and *force* is not given, or its folder is missing.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file.")
    if path.exists() and not force:
        raise UsageError(f"{path} is there already; --force overwrites it.")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first.")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name beside *path* to write to; put it in its place at the end, and leave nothing when that fails."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield beside
        beside.replace(path)
    except OSError as error:
        raise DptraceError(f"{path}: can't be written: {error.strerror or error}.") from None
    finally:
        beside.unlink(missing_ok=True)
