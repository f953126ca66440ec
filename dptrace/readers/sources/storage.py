"""Opening and identity of stored files: on disk, at a URL, or on standard input."""

from __future__ import annotations

import io
import os
import sys
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from dptrace.errors import TraceError
from dptrace.readers.sources import remote
from dptrace.readers.sources.source import STDIN, Source

__all__ = ["file_identity", "open_seekable", "open_stored"]


def open_stored(source: Source) -> BinaryIO:
    """Open a file that is not in an archive; the stream can ``peek``.

    Raises:
        TraceError: the file is missing, a folder, or can't be read.
        MissingExtraError: the package for such URLs is not installed.
    """
    if source.remote:
        return remote.open_stream(source)
    return _standard_input() if source.place == STDIN else _open_file(source.address)


def open_seekable(source: Source) -> BinaryIO:
    """Open the archive that the file is in, or the file itself; the stream can ``seek``.

    Raises:
        TraceError: it is missing, a folder, or can't be read.
        MissingExtraError: the package for such URLs is not installed.
    """
    outer = source.outer()
    return remote.open_seekable(outer) if outer.remote else _open_file(outer.address)


def file_identity(source: Source) -> tuple[str | int, ...] | None:
    """Return values that change with the file: path, size, times; None where they are unknown."""
    if source.member:
        outer = file_identity(source.outer())
        return None if outer is None else (*outer, source.member)
    if source.remote:
        return remote.identity(source)
    if source.place == STDIN:
        return None
    try:
        path = Path(source.address).resolve()
        status = path.stat()
    except (OSError, RuntimeError, ValueError):
        return None
    if not path.is_file():
        return None
    return (str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _open_file(path: str) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file.") from None
    except IsADirectoryError:
        raise TraceError(f"{path}: is a folder, not a trace file.") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: can't be read: {error}.") from None


def _standard_input() -> BinaryIO:
    if sys.stdin is None or sys.stdin.closed:
        raise TraceError("standard input: is closed; pipe a trace into dptrace.")
    if sys.stdin.isatty():
        raise TraceError("standard input: is a terminal; pipe a trace into dptrace: zcat rank0.json.gz | dptrace …")
    # A copy, so that closing it leaves the process's stdin open.
    try:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    except (OSError, io.UnsupportedOperation):  # stdin is not a file, as in a notebook or a test
        return BufferedReader(io.BytesIO(sys.stdin.buffer.read()))
