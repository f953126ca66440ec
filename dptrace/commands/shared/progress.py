"""Progress bars on stderr, and how much a command prints besides its answer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dptrace.commands.shared.output import NORMAL, console

__all__ = ["progress"]

_DELAY_S = 1.0
"""Seconds after which a silent command begins to show its progress."""


@contextmanager
def progress(verb: str, verbosity: str = NORMAL, measured: bool = True) -> Iterator[Callable[[float, str], None]]:
    """Show a progress bar with the elapsed and the remaining time; nothing where stderr is not a terminal.

    Yields a function to call with the fraction done and what is under way.

    Args:
        measured: whether the fraction is known; without, only a spinner and the elapsed time are shown.
    """
    if verbosity != NORMAL or not sys.stderr.isatty():
        yield lambda done, what: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    what = TextColumn("{task.description}", markup=False)
    bars = (BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (SpinnerColumn(), TextColumn(verb), *(bars if measured else (TimeElapsedColumn(),)), what)
    # The remaining time is estimated from all that is done: a part may take minutes.
    bar = Progress(*columns, console=console(stderr=True), transient=True, speed_estimate_period=86_400)
    task = bar.add_task("", total=1.0)
    # On a timer: while one large file is read, nothing calls back.
    timer = threading.Timer(_DELAY_S, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, what: bar.update(task, completed=done, description=what)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
