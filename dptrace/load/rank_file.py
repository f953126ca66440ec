"""One rank's file, read: its timelines and their figures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of
from dptrace.core.text import sanitize
from dptrace.errors import TraceError
from dptrace.load import cache
from dptrace.load.options import ReadOptions
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.sources.source import Source
from dptrace.readers.sources.storage import file_identity
from dptrace.timeline.build import build_timelines

__all__ = ["RankFile", "load_rank_file", "read_rank_file"]


@dataclass(frozen=True, slots=True)
class RankFile:
    """One file with its timelines and figures, small enough to be sent between processes."""

    path: str
    rank: int | None
    """From the file itself; None where the file does not contain it."""
    world_size: int
    devices: tuple[DeviceFigures, ...]
    damage: tuple[str, ...] = field(default=())
    """What was truncated, repaired or dropped while reading, a sentence each."""

    def raise_if_damaged(self) -> None:
        """Raise an error for a damaged file.

        Raises:
            TraceError: data was truncated, repaired or dropped.
        """
        if self.damage:
            raise TraceError(f"{self.path}: damaged, and --strict refuses damaged files: {' '.join(self.damage)}")

    def with_path(self, address: str) -> RankFile:
        """Return a copy with the path that the user gave in this call."""
        path = sanitize(address)
        devices = tuple(replace(d, timeline=replace(d.timeline, path=path)) for d in self.devices)
        return replace(self, path=path, devices=devices)

    def only_communication(self) -> RankFile:
        """Drop all intervals that are not communication."""
        return replace(self, devices=tuple(device.only_communication() for device in self.devices))


def read_rank_file(source: Source, read_options: ReadOptions, jobs: int = 1) -> RankFile:
    """Read a file and compute its figures.

    Raises:
        TraceError: what is wrong with the file, and what to do.
    """
    trace = read_trace(source, jobs, read_options.comm_patterns)
    file = RankFile(trace.path, trace.rank, trace.world_size or 0, (), trace.damage)
    if read_options.strict:
        file.raise_if_damaged()
    timelines = build_timelines(trace, trace.rank or 0, read_options.comm_patterns)
    devices = tuple(figures_of(timeline) for timeline in timelines)
    return replace(file, devices=devices)


def load_rank_file(source: Source, read_options: ReadOptions, jobs: int = 1) -> tuple[RankFile, Path | None]:
    """Return a file's figures from the cache, else read the file and cache it; also return the cache entry, if any.

    Raises:
        TraceError: what is wrong with the file.
    """
    if not read_options.cache:
        return read_rank_file(source, read_options, jobs), None
    key, identity = (source.name, read_options.comm_patterns), file_identity(source)
    found, entry = cache.fetch(source, key, RankFile)
    if found is None:
        file = read_rank_file(source, read_options, jobs)
        return file, cache.store(source, key, file, identity)
    file = found.with_path(source.address)
    if read_options.strict:
        file.raise_if_damaged()
    return file, entry
