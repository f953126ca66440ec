"""dptrace: where the time of a multi-GPU training step goes, told from recordings.

>>> import dptrace
>>> run = dptrace.open("runs/interleaved")      # doctest: +SKIP
>>> run.steps()                                  # doctest: +SKIP
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from dptrace.errors import DptraceError

if TYPE_CHECKING:
    from dptrace.run import Run

__all__ = ["DptraceError", "Run", "__version__", "open"]
__version__ = "0.1.0"


def open(*paths: str | PathLike[str], comm_patterns: tuple[str, ...] = (), partial: bool = False) -> Run:
    """Read a run: a run folder, a trace file, several files, a folder or a glob of traces.

    Args:
        paths: what to read; all of them together are one run, one file per rank.
        comm_patterns: regular expressions, matched case-insensitively anywhere in a kernel's name, of further
            kernels that communicate.
        partial: also read files that are cut off, whose steps may lack work.

    Raises:
        DptraceError: the message says which file, what is wrong with it, and what to do.
    """
    from dptrace.run import open_run

    return open_run([str(path) for path in paths], comm_patterns, partial)


def __getattr__(name: str) -> object:
    # Run is imported when asked for, so that `import dptrace` loads neither NumPy nor pandas.
    if name == "Run":
        from dptrace.run import Run

        return Run
    raise AttributeError(f"module 'dptrace' has no attribute {name!r}")
