"""One rank's file, read: its timelines and their figures."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of
from dptrace.core.subprocess_pool import collection_paused
from dptrace.core.units import sanitize
from dptrace.load import cache
from dptrace.load.options import ReadOptions
from dptrace.readers.discovery import refuse_damage
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.source import Source
from dptrace.readers.storage import file_identity
from dptrace.readers.trace import Trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.host_calls import OPERATOR_CALLS, OperatorCalls, operator_calls

__all__ = ["RankFile", "load_rank_file"]


class RankFile(msgspec.Struct, frozen=True):
    """One file with its timelines and figures, small enough to be sent between processes."""

    path: str
    rank: int | None
    """From the file itself; None where the file does not contain it."""
    world_size: int
    devices: tuple[DeviceFigures, ...]
    damage: tuple[str, ...] = ()
    """What was truncated, repaired or dropped while reading, a sentence each."""
    operators: OperatorCalls | None = None
    """Its operators, where they were read in the same pass and are not in the cache."""

    def with_path(self, address: str) -> RankFile:
        """Return a copy with the path that the user gave in this call."""
        path = sanitize(address)
        devices = tuple(replace(d, timeline=replace(d.timeline, path=path)) for d in self.devices)
        return replace(self, path=path, devices=devices)

    def only_communication(self) -> RankFile:
        """Drop all intervals that are not communication."""
        return replace(self, devices=tuple(device.only_communication() for device in self.devices))


@collection_paused()
def load_rank_file(source: Source, read_options: ReadOptions, jobs: int = 1) -> tuple[RankFile, Path | None]:
    """Return a file's figures, from the cache or else from the file, and the cache entry that holds them, if any.

    Raises:
        TraceError: what is wrong with the file, and what to do.
    """
    patterns, cached = read_options.comm_patterns, read_options.cache
    key, identity = (source.name, patterns), file_identity(source) if cached else None
    file, entry = cache.fetch(source, key, RankFile) if cached else (None, None)
    if file is not None:
        file = file.with_path(source.address)
    else:
        trace = read_trace(source, jobs, patterns, operators=read_options.operators)
        devices = tuple(map(figures_of, build_timelines(trace, trace.rank or 0, patterns)))
        file = RankFile(trace.path, trace.rank, trace.world_size or 0, devices, trace.damage)
        entry = cache.store(source, key, file, identity) if cached else None
        if trace.operators is not None:
            file = _with_operators(file, trace, source, read_options, identity)
    if read_options.strict:
        refuse_damage(file.path, file.damage)
    return file.only_communication() if read_options.figures_only else file, entry


def _with_operators(
    file: RankFile, trace: Trace, source: Source, read_options: ReadOptions, identity: object
) -> RankFile:
    """Store the operators of a trace for a second look, or else keep them with its figures."""
    operators = operator_calls(trace)
    if read_options.cache and len(operators) <= OPERATOR_CALLS.most_cached:
        key = (source.name, OPERATOR_CALLS.name, read_options.comm_patterns)
        if cache.store(source, key, operators, identity) is not None:
            return file
    return replace(file, operators=operators)
