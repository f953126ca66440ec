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
    from dptrace.export.aligned_run import AlignedRun
    from dptrace.run.run import Run

__all__ = ["BUNDLE", "FORMATS", "align_run", "format_of", "write_trace"]

FORMATS = {
    ".pftrace": "Perfetto's own format",
    ".json.gz": "Chrome trace events, compressed",
    ".json": "Chrome trace events",
}
"""What can be written of a run, by the suffix that asks for it."""
BUNDLE = ".zip"
"""Asks for the run's own files instead."""


def _silent(done: float) -> None:
    """Tell nobody."""


def format_of(path: Path) -> str:
    """Give the suffix that says which format to write.

    Raises:
        UsageError: the name ends in none of FORMATS, nor in BUNDLE.
    """
    known = FORMATS | {BUNDLE: "the ranks' own files"}
    for suffix in known:
        if path.name.lower().endswith(suffix) and len(path.name) > len(suffix):
            return suffix
    choices = ", ".join(f"{suffix} ({what})" for suffix, what in known.items())
    raise UsageError(f"{path}: the ending of the name says which format to write; use one of {choices}.")


def align_run(run: Run, align: bool = True) -> AlignedRun:
    """Tell how the ranks of *run* stand to each other: the members of each collective, and their clocks.

    Args:
        align: whether to compare the clocks; else all times stay as recorded.
    """

    return align_run(run, align)


def write_trace(
    run: Run,
    path: Path,
    suffix: str,
    progress: Callable[[float], None] = _silent,
    aligned_run: AlignedRun | None = None,
) -> int:
    """Write the whole run as one trace in the format that *suffix*, a key of FORMATS, stands for.

    Args:
        joined: how the ranks stand to each other; each is left by itself, as recorded, when it is not given.
        progress: called now and then with how many of the run's timelines are written, in fractions.

    Returns:
        The number of slices written.

    Raises:
        OSError: *path* cannot be written; what was written until then is left to the caller.
    """
    from dptrace.export.aligned_run import without_alignment

    aligned_run = aligned_run or without_alignment(run)
    with path.open("wb") as file:
        if suffix == ".pftrace":
            from dptrace.export.perfetto import write_perfetto

            return write_perfetto(run, aligned_run, file, progress)
        from dptrace.export.chrome import write_chrome

        if suffix == ".json":
            return write_chrome(run, aligned_run, file, progress)
        # No name and no time in gzip's header, so that the same run gives the same bytes.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=4, fileobj=file, mtime=0) as packed:
            return write_chrome(run, aligned_run, cast("IO[bytes]", packed), progress)
