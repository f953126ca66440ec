"""Where results go: the terminal, standard output or a file that is written whole or not at all."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from dptrace.core.files import atomic_write
from dptrace.core.units import byte_size, for_terminal, sanitize, to_cell, wrapped
from dptrace.readers.source import is_url, last_part, redact

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from dptrace.load.options import ReadOptions


QUIET, NORMAL, VERBOSE = "quiet", "normal", "verbose"

_FILE_WIDTH = 132
"""Columns of tables in a file or a pipe: enough that none is folded."""
_TRAILING_BLANKS = re.compile(" +(?=\n)")


class OutputFile(click.Path):
    """The type of -o: a path, or "-" for standard output where the command allows it, which converts to None."""

    def __init__(self, dash: bool = False) -> None:
        super().__init__(path_type=Path)
        self.dash = dash

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse a folder's name, whether the folder exists or not."""
        if value == "-" and not self.dash:
            self.fail("this can't go to standard output; name a file.", param, ctx)
        if str(value).endswith(tuple(filter(None, (os.sep, os.altsep)))):
            self.fail(f"{value} names a folder; name a file.", param, ctx)
        return None if value == "-" else super().convert(value, param, ctx)


def console(stderr: bool = False, piped_width: int = _FILE_WIDTH) -> Console:
    """Return a console; piped, it is wide enough that no table is folded."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream is None or stream.isatty() or "COLUMNS" in os.environ else piped_width
    return _console(stream, width)


def _console(stream: TextIO | None, width: int | None) -> Console:
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            """Leave a closed pipe to the command line: rich would make it exit code 1."""
            raise BrokenPipeError

        def print(self, *objects: Any, **options: Any) -> None:
            """Leave a name that is longer than a line to the terminal: rich would cut it."""
            super().print(*objects, **{"crop": False} | options)

    file: Any = _WithoutTrailingBlanks(stream) if stream else None
    return Piped(file=file, width=width, highlight=False, emoji=False)


class _WithoutTrailingBlanks:
    """A text stream for a console, which fills the rows of tables with blanks."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_TRAILING_BLANKS.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def emit(text: str, output: Path | None) -> None:
    """Write JSON or CSV to a file, or to standard output where there is none."""
    if output is None:
        click.echo(text.encode(), nl=False)  # bytes: the terminal's encoding can't change the data
    else:
        write_text(output, text)


def tables_text(show: Callable[[Console], object]) -> str:
    """Return tables as text for a file, at a width that folds none."""
    text = StringIO()
    show(_console(text, _FILE_WIDTH))
    return text.getvalue()


def json_text(content: object) -> str:
    """Return JSON for a person or a program to read; all but ASCII is escaped, so no name controls the terminal."""
    import json

    import msgspec

    try:
        data = msgspec.json.encode(content, enc_hook=_plain)
    except UnicodeEncodeError:  # a name whose bytes were not UTF-8, which msgspec does not write
        finite = json.loads(json.dumps(content, default=_plain), parse_constant=lambda _: None)
        return json.dumps(finite, indent=1) + "\n"
    text = msgspec.json.format(data, indent=1).decode()
    if not text.isascii() or "\x7f" in text:
        text = re.sub("[\x7f-\U0010ffff]", lambda character: json.dumps(character[0])[1:-1], text)
    return text + "\n"


def _plain(value: Any) -> object:
    """Return a NumPy number as Python's."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{value!r} can't be written as JSON")


def csv_text(frame: pd.DataFrame) -> str:
    """Return a frame as CSV, with names from a trace made harmless: for a terminal, and for a spreadsheet."""
    texts = frame.select_dtypes(exclude="number")
    safe = {str(name): column.map(_csv_cell, na_action="ignore") for name, column in texts.items()}
    return str(frame.assign(**safe).to_csv(index=False))


def _csv_cell(value: object) -> object:
    """Return a cell in a column that is not of numbers alone."""
    return value if isinstance(value, Number) else to_cell(sanitize(str(value)))


def print_hint(text: str, verbosity: str) -> None:
    """Print what was done or what to do next on stderr, so that stdout holds the answer alone."""
    if verbosity != QUIET:
        click.echo(sanitize(text), err=True)


def print_written(path: Path, verbosity: str) -> None:
    """Print that a file was written, and how large it is."""
    size = path.stat().st_size  # a device and a pipe have none
    print_hint(f"Wrote {path} ({byte_size(size)})." if size else f"Wrote {path}.", verbosity)


def write_png(drawn: str, path: Path, width: int, height: int | None = None) -> None:
    """Write an SVG as a PNG of this size, else as high as it needs.

    Raises:
        DptraceError: a package is missing.
    """
    from dptrace.viewers.base.render import png

    with atomic_write(path) as temporary:
        temporary.write_bytes(png(drawn, width, height))


def write_pdf(drawn: str, path: Path) -> None:
    """Write an SVG as a PDF of its size.

    Raises:
        MissingExtraError: a package is missing.
    """
    from dptrace.viewers.base.render import pdf

    with atomic_write(path) as temporary:
        temporary.write_bytes(pdf(drawn))


def file_stem(path: str) -> str:
    """Return a run's name in letters that are safe in file names."""
    last = last_part(redact(path)) if is_url(path) else Path(path).absolute().name
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in last).lstrip(".")[:60] or "run"


def print_notes(notes: Iterable[str]) -> None:
    """Print what limits the figures on stderr, as wide as tables are; --quiet does not hide it."""
    for note in notes:
        click.echo(fitted(f"! {sanitize(note)}", indent=2), err=True)


def fitted(text: str, stream: TextIO | None = None, indent: int = 0) -> str:
    """Return a text as wide as tables are: as COLUMNS says, else as a terminal is, else as it is; see for_terminal."""
    if "COLUMNS" in os.environ:
        return wrapped(text, shutil.get_terminal_size().columns, indent)
    return for_terminal(text, stream, indent)


def quoted_paths(paths: Sequence[str]) -> str:
    """Return RUN as it is typed for the next command, without secrets; ``RUN`` for a pipe, which is read once."""
    reread = all(path != "-" and not path.startswith(("/dev/fd/", "/proc/self/fd/")) for path in paths)
    return shlex.join(map(redact, paths)) if reread else "RUN"


def quoted_run(paths: Sequence[str], read_options: ReadOptions) -> str:
    """Return RUN with the options that choose what is read of it, as they are typed for the next command."""
    chosen = [f" --ignore {rank}" for rank in read_options.ignore]
    chosen += [f" --window {read_options.window}"] if read_options.window else []
    return quoted_paths(paths) + "".join(chosen)


# Progress bars on stderr, and how much a command prints besides its answer.


_DELAY_S = 1.0
"""Seconds after which a silent command begins to show its progress."""
_LINE_S = 10.0
"""Seconds between lines of progress where no terminal is: in the log of a job."""


@contextmanager
def progress(verb: str, verbosity: str = NORMAL, measured: bool = True) -> Iterator[Callable[[float, str], None]]:
    """Show a progress bar with the elapsed and the remaining time; where stderr is no terminal, a line every 10 s.

    Yields a function to call with the fraction done and what is under way.

    Args:
        measured: whether the fraction is known; without, only a spinner and the elapsed time are shown.
    """
    if verbosity != NORMAL or not sys.stderr.isatty():
        with _progress_lines(verb, verbosity, measured) as show:
            yield show
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


@contextmanager
def _progress_lines(verb: str, verbosity: str, measured: bool) -> Iterator[Callable[[float, str], None]]:
    """Print a line of progress from time to time, so that who reads a log sees that a command works, and how long."""
    done, what, began, over = 0.0, "", time.monotonic(), threading.Event()

    def show(fraction: float, name: str) -> None:
        nonlocal done, what
        done, what = fraction, name

    def report() -> None:
        while not over.wait(_LINE_S):
            took = time.monotonic() - began
            left = f"{done:.0%}, about {took / done - took:.0f} s left, " if measured and done else ""
            print_hint(f"{verb}: {left}{took:.0f} s so far" + (f", {what}" if what else ""), verbosity)

    # On a thread: while one large file is read, nothing calls back.
    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield show
    finally:
        over.set()
        reporter.join()
