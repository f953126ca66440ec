"""Read the files of a run again, for what its figures do not need: a rank at a time, on request."""

from __future__ import annotations

from typing import Any

import msgspec

from dptrace.core.subprocess_pool import collection_paused
from dptrace.core.units import sanitize
from dptrace.errors import DptraceError
from dptrace.load import cache
from dptrace.load.options import ReadOptions
from dptrace.readers.source import Source
from dptrace.readers.storage import file_identity
from dptrace.timeline.host_calls import Result, SecondPass

__all__ = ["FileRereader"]

_MOST_HELD = 8_000_000
"""Events of the ranks that are held in memory, except for one that has more."""


class FileRereader(msgspec.Struct, frozen=True):
    """Reads files again; it holds what it read last."""

    files: tuple[Source, ...]
    read_options: ReadOptions
    held: dict[tuple[str, str], Any] = {}
    """Results by path and name of the reading."""

    def __call__(self, path: str, reading: SecondPass[Result]) -> Result | None:
        """Return what the file at *path* holds; None where it can't be read a second time."""
        held, key = self.held, (path, reading.name)
        if key not in held:
            source = next((one for one in self.files if sanitize(one.address) == path), None)
            held[key] = None if source is None or source.single_pass else self._read(source, reading)
            while len(held) > 1 and sum(len(result or ()) for result in held.values()) > _MOST_HELD:
                del held[next(iter(held))]
        result: Result | None = held[key]
        return result

    @collection_paused()
    def _read(self, source: Source, reading: SecondPass[Result]) -> Result | None:
        patterns, cached = self.read_options.comm_patterns, self.read_options.cache
        key = (source.name, reading.name, patterns)
        result = cache.fetch(source, key, reading.type)[0] if cached else None
        if result is not None:
            return result
        try:
            identity = file_identity(source) if cached else None
            result = reading.read(source, patterns)
        except (DptraceError, OSError):  # the file has changed or gone since the run was opened
            return None
        if cached and len(result) <= reading.most_cached:
            cache.store(source, key, result, identity)
        return result
