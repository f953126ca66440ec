"""Atomic writes, and checks of output paths."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dptrace.core.inputs import note_output
from dptrace.errors import DptraceError, UsageError

__all__ = ["atomic_write", "check_output", "open_part", "stale_parts"]

_PART = re.compile(r"\.dptrace\.[0-9a-f]{16}\.part")
_ABANDONED_S = 3600
"""Age at which a part counts as left behind where files can't be locked."""


def check_output(path: Path, force: bool) -> None:
    """Check before any work that an output file can be written.

    Raises:
        UsageError: the file exists and *force* is not set, the command reads it, or its folder is missing.
    """
    note_output(path)
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name a file.")
        # A device or a pipe is written to, not replaced: it loses nothing.
        if path.is_file() and not force:
            raise UsageError(f"{path} already exists; --force overwrites it.")
        if not path.resolve().parent.is_dir():
            raise UsageError(f"{path}: the folder {path.resolve().parent} does not exist; create it first.")
    except FileNotFoundError:
        raise UsageError(f"{path}: the current folder was removed; change to another one.") from None
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{path}: can't be written: {getattr(error, 'strerror', None) or error}.") from None


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and move it to *path* at the end; remove it on failure.

    A link is followed and stays a link; a device or a pipe is written to directly.

    Raises:
        DptraceError: the file can't be written.
    """
    try:
        if path.exists() and not path.is_file():
            yield path
            return
        target = path.resolve()
        temporary, file = open_part(target.parent)
        with file:
            try:
                yield temporary
                temporary.replace(target)
            finally:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DptraceError(f"{path}: can't be written: {error.strerror or error}.") from None


def open_part(folder: Path) -> tuple[Path, BinaryIO]:
    """Create a file that only this caller writes, to be moved to its final name in the same folder.

    While it is open, it is locked, so that others see that it is written; parts that killed processes left are removed.

    Raises:
        OSError: the file can't be created.
    """
    for stale in stale_parts(folder):
        with suppress(OSError):
            stale.unlink()
    while True:
        path = folder / f".dptrace.{os.urandom(8).hex()}.part"
        file = path.open("x+b")  # follows no link, and opens nothing that exists
        # Before it was locked, another process could take it for a part that was left, and remove it.
        if _lock(file.fileno()) is not False and path.exists():
            return path, file
        file.close()


def stale_parts(folder: Path) -> Iterator[Path]:
    """Yield the parts in a folder that no process writes; each is locked until the next, so that it can be removed."""
    try:
        names = [name for name in os.listdir(folder) if _PART.fullmatch(name)]
    except OSError:
        return
    for name in names:
        with suppress(OSError):
            file = os.open(folder / name, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            try:
                locked = _lock(file)
                if locked or (locked is None and os.fstat(file).st_mtime < time.time() - _ABANDONED_S):
                    yield folder / name
            finally:
                os.close(file)


def _lock(file: int) -> bool | None:
    """Lock a part; return False if another process has it, and None where files can't be locked."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True
