"""How a run is to be read: what the user may choose, sent along to every process that reads for it."""

from __future__ import annotations

from dataclasses import dataclass

from dptrace.errors import UsageError

__all__ = ["ReadOptions"]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The choices, with what holds when nothing is chosen."""

    comm_patterns: tuple[str, ...] = ()
    """Regular expressions, matched case-insensitively anywhere in a name, of further kernels that communicate."""
    strict: bool = False
    """Whether what is cut off, damaged or impossible in a file is an error instead of being repaired and told."""
    cache: bool = True
    """Whether what an earlier reading of the same file left in the cache folder will do, and is left there."""
    jobs: int | None = None
    """How many processes read; nothing for as many as pay."""
    dask: str | None = None
    """Address of a Dask scheduler whose workers read the files, or ``local`` for a cluster on this machine."""
    figures_only: bool = False
    """Whether the intervals that are not communication are dropped once the figures stand."""

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"{self.jobs} processes can't read anything; at least one does.")
        if self.dask is not None and self.jobs is not None:
            raise UsageError("A Dask cluster reads with the workers it has: choose one of --dask and --jobs.")
        if self.dask is not None and not self.figures_only:
            raise UsageError("A Dask cluster sends back figures, not intervals: read with figures_only.")
