"""A trace file, wherever it lies: its address, its bytes, and what tells it from another of that name."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path, PurePath
from typing import BinaryIO

from dptrace.errors import DptraceError, TraceError
from dptrace.readers.sources.url import is_url, last_part, shown

__all__ = ["STDIN", "Source"]

STDIN = "-"
"""What the user types for standard input."""


@dataclass(frozen=True, slots=True)
class Source:
    """One trace file; small, so that it can be sent to another process or machine and opened there."""

    address: str
    """As messages name it: a path or a URL without what it holds of secrets, with ``!MEMBER`` in an archive."""
    place: str = field(default="", repr=False)
    """What is opened where the address does not say it all: a URL with its credentials, an archive."""
    member: str = ""
    """The file's name within the archive at *place*."""

    @classmethod
    def of(cls, file: Source | Path | str) -> Source:
        """Take a path, a URL or ``-`` (standard input) for the file that it names."""
        if isinstance(file, Source):
            return file
        text = str(file)
        if is_url(text):
            return cls(shown(text), text)
        return cls("standard input", STDIN) if text == STDIN else cls(text)

    def within(self, member: str) -> Source:
        """Give a file of this archive."""
        return Source(f"{self.address}!{member}", self.place or self.address, member)

    @property
    def name(self) -> str:
        """Give the last part of the address."""
        return PurePath(self.member).name if self.member else last_part(self.address)

    @property
    def remote(self) -> bool:
        """Tell whether the file comes over a network, or from whatever else a URL names."""
        return is_url(self._where)

    @property
    def passing(self) -> bool:
        """Tell whether the bytes can be read once only, and by this process alone: a pipe, standard input."""
        if self.member or self.remote:
            return False
        try:
            return self.place == STDIN or (Path(self.address).exists() and not Path(self.address).is_file())
        except OSError:
            return False

    @property
    def _where(self) -> str:
        return self.place or self.address

    def absolute(self) -> Source:
        """Give the same file by an address that holds in any folder, for a process that works in another.

        Raises:
            DptraceError: it is a pipe, which no other process can read.
        """
        if self.remote:
            return self
        if self.passing and not Path(self.address).is_dir():
            raise DptraceError(f"{self.address}: is a pipe, which this process alone can read; save it as a file.")
        whole = Source(os.path.abspath(self._where))
        return whole.within(self.member) if self.member else whole

    def open(self) -> BinaryIO:
        """Open the bytes as they lie there, compressed or not; the stream can ``peek``.

        Raises:
            TraceError: the file is missing, a folder, or can't be read.
            MissingExtraError: a package is missing that reads such addresses.
        """
        if self.member:
            from dptrace.readers.sources.archive import open_member

            return open_member(self)
        if self.remote:
            from dptrace.readers.sources.remote import open_stream

            return open_stream(self)
        if self.place == STDIN:
            return _standard_input()
        return self._open_file()

    def open_whole(self) -> BinaryIO:
        """Open the archive that the file lies in, or the file itself; the stream can ``seek``.

        Raises:
            TraceError: it is missing, a folder, or can't be read.
            MissingExtraError: a package is missing that reads such addresses.
        """
        whole = Source.of(self._where)
        if whole.remote:
            from dptrace.readers.sources.remote import open_seekable

            return open_seekable(whole)
        return whole._open_file()

    def _open_file(self) -> BinaryIO:
        try:
            return Path(self.address).open("rb")
        except FileNotFoundError:
            raise TraceError(f"{self.address}: there is no such file.") from None
        except IsADirectoryError:
            raise TraceError(f"{self.address}: is a folder, not a trace file.") from None
        except (OSError, ValueError) as error:
            raise TraceError(f"{self.address}: can't be read: {error}.") from None

    def identity(self) -> tuple[str | int, ...] | None:
        """Give what changes when the file does (place, size, time of change); nothing where that can't be told."""
        if self.member:
            whole = Source.of(self._where).identity()
            return None if whole is None else (*whole, self.member)
        if self.remote:
            from dptrace.readers.sources.remote import identity

            return identity(self)
        if self.place == STDIN:
            return None
        try:
            path = Path(self.address).resolve()
            status = path.stat()
        except (OSError, RuntimeError, ValueError):
            return None
        return (
            (str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            if path.is_file()
            else None
        )


def _standard_input() -> BinaryIO:
    if sys.stdin is None or sys.stdin.closed:
        raise TraceError("standard input: is closed; pipe a trace into dptrace.")
    if sys.stdin.isatty():
        raise TraceError("standard input: is this terminal; pipe a trace into dptrace: zcat rank0.json.gz | dptrace …")
    # A copy, so that closing it leaves the process its own.
    try:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    except (OSError, io.UnsupportedOperation):  # no file of the operating system, as in a notebook or a test
        return BufferedReader(io.BytesIO(sys.stdin.buffer.read()))


def peeked(stream: BinaryIO, count: int) -> bytes:
    """Give the first bytes of a stream without taking them: a pipe (``dptrace analyze <(zcat …)``) has no seek."""
    assert isinstance(stream, BufferedReader)
    return stream.peek(count)[:count]
