"""Opening of trace files: on disk, at a URL, in an archive, or on standard input."""

from __future__ import annotations

from io import BufferedReader
from typing import BinaryIO

from dptrace.readers.sources.archive import open_member
from dptrace.readers.sources.source import Source
from dptrace.readers.sources.storage import open_stored

__all__ = ["open_source", "peek"]


def open_source(source: Source) -> BinaryIO:
    """Open the stored bytes, which may be compressed; the stream can ``peek``.

    Raises:
        TraceError: the file is missing, a folder, or can't be read.
        MissingExtraError: the package for such URLs is not installed.
    """
    return open_member(source) if source.member else open_stored(source)


def peek(stream: BinaryIO, count: int) -> bytes:
    """Return the first *count* bytes of a stream without consuming them, since a pipe can't seek."""
    assert isinstance(stream, BufferedReader)
    return stream.peek(count)[:count]
