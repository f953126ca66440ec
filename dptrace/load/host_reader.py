"""Read what the host did, call by call, for pages that show it: from the files of a run, after its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dptrace.core.garbage import collection_paused
from dptrace.core.text import sanitize
from dptrace.errors import DptraceError
from dptrace.load import cache
from dptrace.load.options import ReadOptions
from dptrace.readers.sources.source import Source
from dptrace.readers.sources.storage import file_identity

if TYPE_CHECKING:
    from dptrace.timeline.host_calls import HostCalls
    from dptrace.timeline.model import Timeline

__all__ = ["HostReader"]

_MOST_HELD = 8_000_000
"""Events of the ranks that are held in memory, but for one that has more."""
_MOST_CACHED = 4_000_000
"""Events of a file whose calls are cached: some 150 MB, so that a few files do not fill the cache."""


class HostReader(msgspec.Struct, frozen=True):
    """Reads the host calls of one rank at a time; it holds those that it read last."""

    files: tuple[Source, ...]
    read_options: ReadOptions
    held: dict[str, HostCalls | None] = {}

    def __call__(self, timeline: Timeline) -> HostCalls | None:
        """Return the host calls of a timeline's rank; None where its file can't be read a second time."""
        held, path = self.held, timeline.path
        if path not in held:
            source = next((one for one in self.files if sanitize(one.address) == path), None)
            held[path] = None if source is None or source.single_pass else self._read(source)
            while len(held) > 1 and sum(len(calls or ()) for calls in held.values()) > _MOST_HELD:
                del held[next(iter(held))]
        return held[path]

    @collection_paused()
    def _read(self, source: Source) -> HostCalls | None:
        # Few commands need them.
        from dptrace.readers.kineto.reader import read_trace
        from dptrace.timeline.host_calls import HostCalls, host_calls

        cached, key = self.read_options.cache, (source.name, "host calls")
        calls = cache.fetch(source, key, HostCalls)[0] if cached else None
        if calls is not None:
            return calls
        try:
            identity = file_identity(source) if cached else None
            calls = host_calls(read_trace(source, comm_patterns=self.read_options.comm_patterns, detailed=True))
        except (DptraceError, OSError):  # the file has changed or gone since the run was opened
            return None
        if cached and len(calls) <= _MOST_CACHED:
            cache.store(source, key, calls, identity)
        return calls
