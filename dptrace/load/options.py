"""The options for reading a run, passed to every process that reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dptrace.core.numbers import Number
from dptrace.core.patterns import Patterns
from dptrace.errors import UsageError

if TYPE_CHECKING:
    from dptrace.timeline.host_calls import SecondPass

_JOBS = Number(1, whole=True)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading, with their defaults."""

    comm_patterns: tuple[str, ...] = ()
    """Regular expressions for further communication kernels, searched in kernel names without regard to case."""
    phase_labels: tuple[str, ...] = ()
    """``REGEX=PHASE``: work under labels that match, searched without regard to case, belongs to this phase."""
    step_range: str = ""
    """Name of the ranges that are steps, with or without a number at its end; empty for the profiler's marks."""
    strict: bool = False
    """Raise an error for truncated, damaged or impossible data, instead of repairing it and adding a note."""
    cache: bool = True
    """Use and write the cache of parsed files."""
    jobs: int | None = None
    """Number of processes that read; None chooses."""
    dask: str | None = None
    """Address of a Dask scheduler whose workers read the files, or ``local`` for a cluster on this machine."""
    figures_only: bool = False
    """Drop all intervals but communication once the figures are computed."""
    prefetch: tuple[SecondPass[Any], ...] = ()
    """What is read of each file again next: it is put into the cache at once, by the process that reads the file."""
    operators: bool = False
    """Also read operators with their inputs, in the same pass over each file, for what is asked of them next."""
    ignore: tuple[int, ...] = ()
    """Ranks that are left out, as if they had not been recorded."""
    window: int | None = None
    """Which of several windows of each process is read, from 1; None for all."""
    align: bool = True
    """Correct clocks that are off before ranks are compared, drawn or exported; it changes nothing that is read."""

    def __post_init__(self) -> None:
        if self.jobs is not None:
            _JOBS.check(self.jobs, "--jobs")
        if self.dask is not None and self.jobs is not None:
            raise UsageError("A Dask cluster has its own number of workers: choose one of --dask and --jobs.")

    @property
    def patterns(self) -> Patterns:
        """The patterns of names, which figures depend on."""
        return Patterns(self.comm_patterns, self.phase_labels, self.step_range)
