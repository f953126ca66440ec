"""Read all files of a run in parallel, from the cache where possible, on this machine's cores or a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

from dptrace.core.array_file import CorruptArrayFile
from dptrace.core.subprocess_pool import available_cores, run_parallel
from dptrace.errors import DptraceError
from dptrace.load import cache
from dptrace.load.options import ReadOptions
from dptrace.load.rank_file import RankFile, load_rank_file
from dptrace.readers.source import Source
from dptrace.readers.storage import file_identity

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
    if jobs == 1 or len(sources) == 1:
        for index, source in enumerate(sources):
            try:
                result: RankFile | DptraceError = load_rank_file(source, read_options, jobs)[0]
            except DptraceError as error:
                result = error
            yield index, result
        return
    # Figures are small enough to be sent; arrays go through a folder.
    with nullcontext("") if read_options.figures_only else _temporary() as folder:
        read = partial(_read, read_options=read_options, folder=folder, parent_pid=os.getpid())
        for index, answer in run_parallel(read, sources, jobs):
            yield index, _map_result(answer, sources[index], read_options) if isinstance(answer, Path) else answer


def _temporary() -> AbstractContextManager[str]:
    # A run of one file needs none.
    from tempfile import TemporaryDirectory

    return TemporaryDirectory(prefix="dptrace.", ignore_cleanup_errors=True)


def _map_result(entry: Path, source: Source, read_options: ReadOptions) -> RankFile:
    """Map the arrays that another process wrote."""
    try:
        return cache.read(entry, RankFile).with_path(source.address)
    except (OSError, CorruptArrayFile):  # the disk was full, or the cache was cleared meanwhile
        return load_rank_file(source, replace(read_options, cache=False))[0]


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


def _read(source: Source, read_options: ReadOptions, folder: str, parent_pid: int) -> RankFile | Path:
    """Read one file; in another process than the parent, write the arrays to a file that the parent maps."""
    file, entry = load_rank_file(source, read_options)
    if read_options.figures_only or os.getpid() == parent_pid:
        return file
    if entry is None:
        entry = Path(folder, uuid4().hex)
        cache.write(file, entry)
    return entry
