"""Keep what torch's native code prints when the profiler starts and stops away from the terminal.

Kineto writes to file descriptor 2 itself, with a severity above that of errors, so no log level hides its lines without
hiding errors too.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["quiet_stderr"]

_CHATTER = re.compile(
    rb"USDT:"  # Kineto of torch 2.13
    rb"|(STAGE|INFO):\d{4}-\d\d-\d\d .*\]"  # older Kineto
    rb"|\[Gloo\] Rank \d+ is connected to"
    rb"|.*\bNCCL INFO "
)
"""Matches lines that report no problem."""
_LOCK = threading.Lock()
"""Held while file descriptor 2 is replaced: two threads would restore each other's."""


class _Held:
    """A file that standard error goes to, for all blocks of a process.

    A thread may be about to write to it when a block ends, and do so after it was read. So it stays, and what comes
    late is read at the end of the next block, or of the process.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):  # in memory, so that no full disk makes a print() of the script fail
            self.file: Any = os.fdopen(os.memfd_create("dptrace_stderr"), "r+b", buffering=0)
        else:
            self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # for the life of the process
        # Without it, a late write could land where the offset was when the file was read.
        fcntl.fcntl(self.file, fcntl.F_SETFL, fcntl.fcntl(self.file, fcntl.F_GETFL) | os.O_APPEND)
        self._read = 0

    def new(self) -> bytes:
        """Return what was written since the last call."""
        size = os.fstat(self.file.fileno()).st_size - self._read
        found = os.pread(self.file.fileno(), size, self._read)
        self._read += len(found)
        return found


_HELD: list[_Held] = []
"""The file, once there was a block."""
# A child process has its own lines only.
os.register_at_fork(after_in_child=_HELD.clear)


@contextmanager
def quiet_stderr(log: Path | None = None) -> Iterator[None]:
    """Hold back what this process writes to standard error, and write it when the block ends, without chatter.

    All threads' lines are held back, and written in their order; what is not known as chatter is never dropped. If the
    process crashes inside the block, what was held back is lost. Processes that other threads start inside the block
    keep writing to the temporary file: keep the block short.

    Args:
        log: a file to which the chatter is appended; by default it is dropped.
    """
    if not _LOCK.acquire(blocking=False):
        yield  # inside another block
        return
    try:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        try:
            terminal = os.dup(2)
            held = _held()
        except OSError:  # standard error is closed, or the disk is full
            yield
            return
        os.dup2(held.file.fileno(), 2)
        try:
            yield
        finally:
            with suppress(OSError, ValueError):
                sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            _show(held, log)
    finally:
        _LOCK.release()


def _held() -> _Held:
    if not _HELD:
        _HELD.append(_Held())
    return _HELD[0]


@atexit.register
def _show_late() -> None:
    for held in _HELD:
        _show(held)


def _show(held: _Held, log: Path | None = None) -> None:
    """Write the lines that came since the last time to standard error, and chatter to the log."""
    lines = held.new().splitlines(keepends=True)
    chatter = [line for line in lines if _CHATTER.match(line)]
    with suppress(OSError):
        _write(2, b"".join(line for line in lines if not _CHATTER.match(line)))
        if log is not None and chatter:
            with log.open("ab") as file:
                file.writelines(chatter)


def _write(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]
