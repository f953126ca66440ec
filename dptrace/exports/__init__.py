"""Traces to look at elsewhere: a run with its figures in, one merged file for Perfetto or Chrome out.

The room is a viewer's: it knows the timelines, the split and the palette's labels, and computes no figure of its own.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from dptrace.errors import UsageError

if TYPE_CHECKING:
    from dptrace.run import Run

__all__ = ["FORMATS", "format_of", "write_trace"]

FORMATS = {
    ".pftrace": "Perfetto's own format",
    ".json.gz": "Chrome trace events, compressed",
    ".json": "Chrome trace events",
}
"""What can be written, by the suffix that asks for it."""


def _silent(done: float) -> None:
    """Tell nobody."""


def format_of(path: Path) -> str:
    """Give the suffix that says which format to write.

    Raises:
        UsageError: the name ends in none of FORMATS.
    """
    for suffix in FORMATS:
        if path.name.lower().endswith(suffix) and len(path.name) > len(suffix):
            return suffix
    choices = ", ".join(f"{suffix} ({what})" for suffix, what in FORMATS.items())
    raise UsageError(f"{path}: the ending of the name says which format to write; use one of {choices}.")


def write_trace(run: Run, path: Path, suffix: str, progress: Callable[[float], None] = _silent) -> int:
    """Write the whole run as one trace in the format that *suffix*, a key of FORMATS, stands for.

    Args:
        progress: called now and then with how many of the run's timelines are written, in fractions.

    Returns:
        The number of slices written.

    Raises:
        OSError: *path* cannot be written; what was written until then is left to the caller.
    """
    with path.open("wb") as file:
        if suffix == ".pftrace":
            from dptrace.exports.perfetto import write_perfetto

            return write_perfetto(run, file, progress)
        from dptrace.exports.chrome import write_chrome

        if suffix == ".json":
            return write_chrome(run, file, progress)
        # No name and no time in gzip's header, so that the same run gives the same bytes.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=4, fileobj=file, mtime=0) as packed:
            return write_chrome(run, cast("IO[bytes]", packed), progress)
