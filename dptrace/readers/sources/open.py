"""Opening of trace files: on disk, at a URL, in an archive, or on standard input."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from dptrace.readers.sources.archive import open_member
from dptrace.readers.sources.source import Source
from dptrace.readers.sources.storage import open_stored

__all__ = ["open_source"]


def open_source(source: Source) -> AbstractContextManager[Any]:
    """Open the stored bytes, which may be compressed; the stream can ``peek`` and ``read1``.

    Raises:
        TraceError: the file is missing, a folder, or can't be read.
        MissingExtraError: the package for such URLs is not installed.
    """
    return open_member(source) if source.member else open_stored(source)
