"""Read all files of a run in parallel, from the cache where possible, on this machine's cores or a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from dptrace.core.array_file import CorruptArrayFile
from dptrace.core.subprocess_pool import available_cores, run_parallel
from dptrace.errors import DptraceError
from dptrace.load import cache
from dptrace.load.options import ReadOptions
from dptrace.load.rank_file import RankFile, load_rank_file, read_rank_file
from dptrace.readers.sources.source import Source
from dptrace.readers.sources.storage import file_identity

__all__ = ["read_files"]

_BYTES_PER_PROCESS = 2 << 20
"""Compressed bytes that take about as long to read as another process takes to start."""


def read_files(sources: Sequence[Source], read_options: ReadOptions) -> Iterator[tuple[int, RankFile | DptraceError]]:
    """Read the files; yield each file's index with its figures or its error, as they arrive.

    Raises:
        DptraceError: reading failed for a reason outside the files, such as an unreachable Dask cluster.
    """
    if read_options.dask is not None:
        from dptrace.load.dask import read_on_cluster

        yield from read_on_cluster(sources, read_options)
        return
    # Only this process can read a pipe.
    jobs = 1 if any(source.single_pass for source in sources) else read_options.jobs or _process_count(sources)
    with ExitStack() as stack:
        # Only arrays from other processes need a folder.
        shared = jobs > 1 and len(sources) > 1 and not read_options.figures_only
        folder = stack.enter_context(_temporary()) if shared else ""
        tasks = [
            _Task(source, read_options, folder, os.getpid(), jobs if len(sources) == 1 else 1) for source in sources
        ]
        for index, result in run_parallel(_read_task, tasks, jobs):
            yield index, _map_result(result, tasks[index]) if isinstance(result, Path) else result


def _temporary() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="dptrace.", ignore_cleanup_errors=True)


def _map_result(entry: Path, task: _Task) -> RankFile:
    """Map the arrays that another process wrote."""
    try:
        return cache.read(entry, RankFile).with_path(task.source.address)
    except (OSError, CorruptArrayFile):  # the disk was full, or the cache was cleared meanwhile
        return read_rank_file(task.source, task.read_options)


def _process_count(sources: Sequence[Source]) -> int:
    """Return the number of processes that reading benefits from."""
    if len(sources) == 1:
        return available_cores()
    size = sum(_weight(source) for source in sources)
    return max(1, min(available_cores(), len(sources), size // _BYTES_PER_PROCESS))


def _weight(source: Source) -> int:
    identity = file_identity(source)
    size = identity[1] if identity else _BYTES_PER_PROCESS
    assert isinstance(size, int)
    return size if source.name.endswith(".gz") else size // 12


@dataclass(frozen=True, slots=True)
class _Task:
    source: Source
    read_options: ReadOptions
    folder: str
    parent_pid: int
    jobs: int

    def __str__(self) -> str:
        return self.source.address


def _read_task(task: _Task) -> RankFile | Path:
    """Read one file; in another process than the parent, write the arrays to a file that the parent maps."""
    file, entry = load_rank_file(task.source, task.read_options, task.jobs)
    if task.read_options.figures_only:
        return file.only_communication()
    if os.getpid() == task.parent_pid:
        return file
    if entry is None:
        entry = Path(task.folder, f"{os.getpid()}.{id(task)}")
        cache.write(file, entry)
    return entry
