"""dptrace: where the time of a multi-GPU training step goes, told from recordings.

>>> import dptrace
>>> run = dptrace.open("runs/interleaved")      # doctest: +SKIP
>>> run.steps()                                  # doctest: +SKIP
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from dptrace.errors import DptraceError, UsageError

if TYPE_CHECKING:
    from dptrace.run.run import Run

__all__ = ["DptraceError", "Run", "__version__", "open"]
__version__ = "0.1.0"


def open(
    *paths: str | PathLike[str],
    comm_patterns: tuple[str, ...] = (),
    strict: bool = False,
    cache: bool = True,
    jobs: int | None = None,
    dask: str | None = None,
    figures_only: bool = False,
) -> Run:
    """Read a run: a run folder, a trace file, several files, a folder or a glob of traces, or addresses of them.

    Args:
        paths: what to read; all of them together are one run, one file per rank.
        comm_patterns: regular expressions, matched case-insensitively anywhere in a kernel's name, of further
            kernels that communicate.
        strict: make an error of what is cut off, damaged or impossible in a file, instead of a note.
        cache: use what an earlier reading of the same file left in the cache folder, and leave it there.
        jobs: how many processes read; nothing for as many as pay.
        dask: address of a Dask scheduler whose workers read the files and send back figures, or ``local``.
        figures_only: drop the intervals that are not communication once the figures stand, which keeps runs of
            thousands of ranks small; pictures and :meth:`Run.intervals` need them.

    Raises:
        DptraceError: the message says which file, what is wrong with it, and what to do.
    """
    from dptrace.load.open import open_run
    from dptrace.load.options import Reading

    if any(isinstance(path, list | tuple | set) for path in paths):
        raise UsageError("dptrace.open takes paths one by one: dptrace.open(*paths).")
    reading = Reading(tuple(comm_patterns), strict, cache, jobs, dask, figures_only or dask is not None)
    return open_run([str(path) for path in paths], reading)


def __getattr__(name: str) -> object:
    # Run is imported when asked for, so that `import dptrace` loads neither NumPy nor pandas.
    if name == "Run":
        from dptrace.run.run import Run

        return Run
    raise AttributeError(f"module 'dptrace' has no attribute {name!r}")
