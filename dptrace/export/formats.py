"""Write a run and its figures as one merged trace for Perfetto or Chrome.

Exporting reads the run's timelines, splits and cross-rank analysis and computes no figure of its own.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from dptrace.errors import UsageError

if TYPE_CHECKING:
    from dptrace.export.tracks import AlignedRun
    from dptrace.run.run import Run

FORMATS = {
    ".pftrace": "Perfetto's own format",
    ".json.gz": "Chrome trace events, compressed",
    ".json": "Chrome trace events",
}
"""The formats of a merged trace, by file suffix."""


def format_of(path: Path) -> str:
    """Return the suffix of *path* that selects the format to write.

    Raises:
        UsageError: the name ends in no suffix of FORMATS.
    """
    for suffix in FORMATS:
        if path.name.lower().endswith(suffix) and len(path.name) > len(suffix):
            return suffix
    choices = ", ".join(f"{suffix} ({what})" for suffix, what in FORMATS.items())
    raise UsageError(f"{path}: the suffix selects the format to write; use one of {choices}.")


def write_trace(
    run: Run,
    path: Path,
    suffix: str,
    progress: Callable[[float], None] = lambda done: None,
    aligned_run: AlignedRun | None = None,
) -> int:
    """Write the whole run as one trace in the format of *suffix*, a key of FORMATS.

    Args:
        progress: called repeatedly with the number of timelines written so far, a fraction included.
        aligned_run: clock shifts and matched collectives of the ranks, where they are there already.

    Returns:
        The number of slices written.

    Raises:
        OSError: *path* cannot be written; the caller removes the partial file.
    """
    from dptrace.export.tracks import align_run

    aligned_run = aligned_run or align_run(run)
    with path.open("wb") as file:
        if suffix == ".pftrace":
            from dptrace.export.perfetto import write_perfetto

            return write_perfetto(run, aligned_run, file, progress)
        from dptrace.export.chrome import write_chrome

        if suffix == ".json":
            return write_chrome(run, aligned_run, file, progress)
        # No name and no time in the gzip header, so that the same run produces the same bytes.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=4, fileobj=file, mtime=0) as packed:
            return write_chrome(run, aligned_run, cast("IO[bytes]", packed), progress)
