"""A trace file, wherever it lies: its address, its bytes, and what tells it from another of that name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePath
from typing import BinaryIO

from dptrace.errors import TraceError

__all__ = ["Source"]


@dataclass(frozen=True, slots=True)
class Source:
    """One trace file; small, so that it can be sent to another process or machine and opened there."""

    address: str
    """As messages name it: a path."""

    @classmethod
    def of(cls, file: Source | Path) -> Source:
        """Take a path for the file that it names."""
        return cls(str(file)) if isinstance(file, Path) else file

    @property
    def name(self) -> str:
        """Give the last part of the address."""
        return PurePath(self.address).name

    def absolute(self) -> Source:
        """Give the same file by an address that holds in any folder, for a process that works in another."""
        return Source(os.path.abspath(self.address))

    def open(self) -> BinaryIO:
        """Open the bytes as they lie there, compressed or not; the stream can ``peek``.

        Raises:
            TraceError: the file is missing, a folder, or can't be read.
        """
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
        try:
            path = Path(self.address).resolve()
            status = path.stat()
        except (OSError, RuntimeError, ValueError):
            return None
        return (str(path), status.st_size, status.st_mtime_ns, status.st_ino) if path.is_file() else None


def peeked(stream: BinaryIO, count: int) -> bytes:
    """Give the first bytes of a stream without taking them: a pipe (``dptrace analyze <(zcat …)``) has no seek."""
    assert isinstance(stream, BufferedReader)
    return stream.peek(count)[:count]
